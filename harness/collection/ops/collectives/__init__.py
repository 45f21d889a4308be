"""Collectives over ranks, one process a device, as nccl-tests measures them: their bytes, bandwidths and buffers."""
