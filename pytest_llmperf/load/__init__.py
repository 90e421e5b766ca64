"""The load: a plan of arrivals, the text of each request, and the loop that sends them and keeps what came back.

Nothing here knows an engine, a control route or pytest. ``arrivals`` and ``prompts`` make the plan, ``request`` the
bytes; ``driver`` runs the loop over ``transport`` and ``connection``; ``client`` turns one exchange into a record with
the parsers ``http1``, ``sse`` and ``openai``, which are fed bytes and do no I/O.
"""
