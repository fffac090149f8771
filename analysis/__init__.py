"""Questions to a timeline, measured, replayed or what-if, answered as typed tables.

========================  =====================================================================
``breakdown``             what each rank does in each step, exact to the nanosecond
``communication``         cost and bandwidth of each kind of communication
``criticalpath``          what the length of a step is made of
``kernels``               which kernels take the time
``findings``              what holds the step back, each priced by a replay without it
``sensitivity``           what a step would gain if one kind of work took half as long
``figures``               the same as pictures
``report``                all of it in one HTML file
========================  =====================================================================

Functions take a :class:`~foretrace.replay.graph.Timeline` (or a job graph) and give pandas
DataFrames with units in their column names.
"""
