"""What scripts ask of PyTorch before they start a run: how many GPUs a node has."""
import os

__version__ = '2.9.0'


class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: int(os.environ['FOLDWISE_GPUS_PER_NODE']))
    get_device_name = staticmethod(lambda *_: os.environ['FOLDWISE_GPU'])
