"""The trace set: schema, files, importers and exporters."""
