"""Pipelines that feed a training step: files on a disk become batches on the device, stage by stage.

A call is one step of the stage at the end, which trains with the next batch. All other stages have threads of their
own, which work while the step is computed, as far as the queues between them have room.
"""
