"""A step over several chips: micro-batches that accumulate gradients, pipeline stages, replicas.

spec.py        what is wanted, as plain data
schedule.py    when which stage works on which micro-batch
stages.py      which stage each node belongs to
cut.py         one graph becomes one for each stage, and one for the weight update
queues.py      how values come from one stage to a later one
crossing.py    lowers what goes from stage to stage
entry.py       lowers all of that to one program
"""
