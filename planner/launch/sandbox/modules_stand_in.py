"""What a machine of the cluster has installed: modules that scripts import to see whether they are there.

Python imports this file (sitecustomize) before it runs anything."""
import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
import types

# Installed by docker/Dockerfile.ci.dev and pyproject.toml of Megatron-LM, or in the container of NVIDIA's below it.
_MODULES = {
    'apex', 'causal_conv1d', 'cudnn', 'deep_ep', 'emerging_optimizers', 'fast_hadamard_transform', 'flash_attn',
    'mamba_ssm', 'megatron', 'megatron_fsdp', 'modelopt', 'nvidia_resiliency_ext', 'transformer_engine',
    'transformer_engine_torch'
}
_VERSIONS = dict(pair.split('=', 1) for pair in os.environ.get('FOLDWISE_VERSIONS', '').split())


class _StandIn(types.ModuleType):

    def __getattr__(self, name):
        package = self.__name__.partition('.')[0]
        if name == '__version__' and package in _VERSIONS:
            return _VERSIONS[package]
        if name.startswith('__'):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):

    def find_spec(self, name, path=None, target=None):
        package = name.partition('.')[0]
        if package in _MODULES or (package == 'torch' and name != package):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


_installed = importlib.metadata.version


def _version(name):
    return _VERSIONS.get(name.lower().replace('-', '_')) or _installed(name)


importlib.metadata.version = _version
sys.meta_path.insert(0, _Finder())
