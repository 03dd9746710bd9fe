"""What scripts ask of PyTorch before they start a run: the GPUs of a node, and versions."""
import os
import sys
import types

_versions = dict(pair.split('=', 1) for pair in os.environ.get('FOLDWISE_VERSIONS', '').split())
_capability = tuple(int(part) for part in os.environ['FOLDWISE_CAPABILITY'].split('.'))
_memory = int(os.environ['FOLDWISE_GPU_MEMORY']) << 20


def _device_count():
    for name in ('CUDA_VISIBLE_DEVICES', 'NVIDIA_VISIBLE_DEVICES'):
        devices = os.environ.get(name, '')
        if devices and devices not in ('all', 'void', 'none'):
            return len(devices.split(','))
    return int(os.environ['FOLDWISE_GPUS_PER_NODE'])


class _Properties:
    name = os.environ['FOLDWISE_GPU']
    total_memory = _memory
    major, minor = _capability


class cuda:
    is_available = staticmethod(lambda: True)
    is_bf16_supported = staticmethod(lambda *_: True)
    device_count = staticmethod(_device_count)
    current_device = staticmethod(lambda: 0)
    get_device_name = staticmethod(lambda *_: _Properties.name)
    get_device_capability = staticmethod(lambda *_: _capability)
    get_device_properties = staticmethod(lambda *_: _Properties)
    mem_get_info = staticmethod(lambda *_: (_memory, _memory))


__path__ = []  # Its other parts are stand-ins too (modules_stand_in.py).
__version__ = _versions.get('torch', '2.9.0')
version = types.ModuleType('torch.version')
version.cuda = _versions.get('cuda', '13.0')
version.__version__ = __version__
sys.modules['torch.version'] = version
sys.modules['torch.cuda'] = cuda
