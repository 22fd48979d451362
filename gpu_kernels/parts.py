"""The parts of a runner that compute by the kernels."""

from gpu_kernels.attention import KernelAttention
from gpu_kernels.head import KernelHead
from services.engine.forward.torch_runner import Parts

KERNELS = Parts(KernelAttention, KernelHead)
