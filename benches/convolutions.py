#!/usr/bin/env python3
"""Time the convolution kernels of crates/graph/cpp on a Hopper GPU, and check them against PyTorch:

    python3 benches/convolutions.py [FILE.cu [NAME=VALUE ...]]

For the shapes of WRN-28-2 and ResNet-18 with ten clients and two views of ten images, it prints the relative error
and the microseconds of forward, input and weight kernels: those of hopper.cu and those of patch.cu. FILE.cu is tried
in place of patch.cu, with these macros: a candidate with the same entry points is measured before it gets there. Each
kernel runs 50 times in a captured graph; the fastest of three such replays counts.
"""
import ctypes
import math
import sys
from pathlib import Path

import torch
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

CPP = Path(__file__).resolve().parent.parent / "crates/graph/cpp"
CLIENTS, IMAGES = 10, 20
# Channels in and out of a client, side of the image.
SHAPES = [(16, 32, 32), (32, 32, 32), (64, 64, 16), (128, 128, 8), (64, 64, 32), (128, 128, 16), (256, 256, 8)]
SHARED = 227 * 1024  # bytes that a block may have


def over(a, b):
    return -(-a // b)


def check(outcome, what):
    if outcome:
        sys.exit(f"error: {what}: CUDA error {outcome}")


class Div(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("multiplier", "shift", "divisor")]

    @staticmethod
    def by(divisor):
        if divisor == 1:
            return Div(0, 0, 1)
        power = 31 + (divisor - 1).bit_length()
        return Div(over(1 << power, divisor), power - 32, divisor)


def structure(numbers):
    pointers = [(name, ctypes.c_void_p) for name in ("a", "b", "out")] + [("part", ctypes.c_longlong)]
    fields = pointers + [(name, ctypes.c_int) for name in numbers.split()] + [("image", Div), ("row", Div)]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


Conv = structure("rows inputs outputs a_stride b_stride out_stride depth log_a taps stride padding height width parts")


class Patch(ctypes.Structure):
    """Of patch.cu, and further members that a candidate may have."""

    _fields_ = [
        *structure("inputs outputs a_stride b_stride out_stride tiles height width parts")._fields_,
        ("images", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in "scale shift other factor0 factor1 factor2 add partial gate gate_scale gate_shift gate_mean".split()),
    ]


class Kernels:
    """The kernels, compiled for this GPU."""

    def __init__(self, patch, macros):
        self.cuda, nvrtc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(nvrtc_library())
        source = "".join(path.read_text() for path in (CPP / "kernels.cu", CPP / "conv.cu", CPP / "hopper.cu", patch))
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None), "NVRTC")
        options = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"-DON_HOPPER", *(f"-D{macro}".encode() for macro in macros)]
        if nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            sys.exit(log.value.decode())
        check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "NVRTC")
        code = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetCUBIN(program, code), "NVRTC")
        self.module, self.found = ctypes.c_void_p(), {}
        check(self.cuda.cuModuleLoadData(ctypes.byref(self.module), code), "loading the kernels")

    def has(self, name):
        if name not in self.found:
            function = ctypes.c_void_p()
            missing = self.cuda.cuModuleGetFunction(ctypes.byref(function), self.module, name.encode())
            self.found[name] = None if missing else function
        return self.found[name] is not None

    def threads(self, name):
        """The threads of a block that the kernel was compiled for."""
        found = ctypes.c_int()
        check(self.cuda.cuFuncGetAttribute(ctypes.byref(found), 0, self.found[name]), name)
        return found.value

    def launch(self, name, grid, threads, shared, arguments):
        if not self.has(name):
            sys.exit(f"error: there is no kernel {name}")
        function = self.found[name]
        check(self.cuda.cuFuncSetAttribute(function, 8, shared), f"{name}: {shared} bytes of shared memory")
        pointers = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(arguments), ctypes.c_void_p))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(self.cuda.cuLaunchKernel(function, *grid, threads, 1, 1, shared, stream, pointers, None), name)


def nvrtc_library():
    """NVRTC from the CUDA packages beside PyTorch."""
    folder = Path(torch.__file__).resolve().parent.parent / "nvidia"
    found = next(iter(sorted(folder.glob("*/lib/libnvrtc.so.*"))), None)
    if found is None:
        sys.exit(f"error: no libnvrtc under {folder}")
    for builtins in found.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    return str(found)


def microseconds(run, times=50):
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(times):
                run()
    found = []
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1000 / times)
    return min(found)


def report(name, run, found, expected, operations):
    run()
    torch.cuda.synchronize()
    value = found().float()
    error = ((value - expected).norm() / expected.norm()).item()
    took = microseconds(run)
    print(f"  {name:42} error {error:7.1e} {took:6.1f} us {operations / took / 1e6:4.0f} TFLOP/s", flush=True)


def by_view(values, x):
    """Numbers [views, columns] for the rows of x [views * images, columns, H, W]."""
    return values.repeat_interleave(x.shape[0] // values.shape[0], 0)[:, :, None, None]


class Layer:
    """One convolution of ten clients, with all that a candidate may fuse with it."""

    def __init__(self, inputs, outputs, side):
        self.inputs, self.outputs, self.side = inputs, outputs, side
        torch.manual_seed(0)
        self.x, self.add_x = self.image(inputs), self.image(inputs)
        self.dy, self.z, self.add_y = self.image(outputs), self.image(outputs), self.image(outputs)
        self.w = (torch.randn(CLIENTS, outputs, 3, 3, inputs, device="cuda") / math.sqrt(9 * inputs)).bfloat16()
        self.plain = self.w.permute(0, 1, 4, 2, 3).reshape(CLIENTS * outputs, inputs, 3, 3).float()
        self.scale, self.shift, self.mean = (torch.randn(2, CLIENTS * inputs, device="cuda") for _ in range(3))
        self.factors = [torch.randn(2, CLIENTS * outputs, device="cuda") for _ in range(3)]
        self.operations = 2 * IMAGES * side * side * CLIENTS * outputs * 9 * inputs
        self.tiles = IMAGES * (side // 8) ** 2
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count

    def image(self, channels):
        size = (IMAGES, CLIENTS * channels, self.side, self.side)
        return torch.randn(size, device="cuda").bfloat16().to(memory_format=torch.channels_last)

    def forward(self, x):
        return conv2d(x, self.plain, padding=1, groups=CLIENTS)

    def backward(self, dy):
        return conv2d_input(self.x.shape, self.plain, dy, padding=1, groups=CLIENTS)

    def weight(self, x, dy):
        found = conv2d_weight(x, self.plain.shape, dy, padding=1, groups=CLIENTS)
        return found.reshape(CLIENTS, self.outputs, self.inputs, 3, 3).permute(0, 1, 3, 4, 2)

    def normalised(self):
        x = self.x.float()
        return (x * by_view(self.scale, x) + by_view(self.shift, x)).relu().bfloat16().float()

    def combined(self):
        dy, z = self.dy.float(), self.z.float()
        f = [by_view(factor, dy) for factor in self.factors]
        return (f[0] * dy + f[1] * z + f[2]).bfloat16().float()

    def patch(self, a, b, out, parts=1):
        side, part = self.side, self.w.numel()
        p = Patch(a.data_ptr(), b.data_ptr(), out.data_ptr(), part, self.inputs, self.outputs, a.shape[1], self.dy.shape[1])
        p.out_stride, p.tiles, p.height, p.width, p.parts = out.shape[1], self.tiles, side, side, parts
        p.image, p.row, p.images = Div.by((side // 8) ** 2), Div.by(side // 8), IMAGES // 2
        return p

    def hopper(self, kernels):
        rows = IMAGES * self.side**2
        for direction, a, channels, columns in (("forward", self.x, self.inputs, self.outputs), ("backward", self.dy, self.outputs, self.inputs)):
            out = torch.empty_like(self.dy if direction == "forward" else self.x)
            wide = 128 if columns >= 128 else 64 if columns >= 64 else 32
            if wide == 128 and over(rows, 128) * over(columns, 128) * CLIENTS < 2 * self.processors:
                wide = 64
            log = (channels // 8).bit_length() - 1
            c = Conv(a.data_ptr(), self.w.data_ptr(), out.data_ptr(), 0, rows, self.inputs, self.outputs, a.shape[1], 0, out.shape[1], 9 * self.inputs, log, 9, 1, 1)
            c.height = c.width = self.side
            c.parts, c.image, c.row = 1, Div.by(self.side**2), Div.by(self.side)
            grid, shared = (over(rows, 128), over(columns, wide), CLIENTS), max(3 * (128 + wide) * 128, 136 * wide * 4)
            name = f"hopper_{direction}_{wide}"
            expected = self.forward(a.float()) if direction == "forward" else self.backward(a.float())
            report(name, lambda: kernels.launch(name, grid, 256, shared, c), lambda: out, expected, self.operations)  # noqa: B023
        wide = min(max(self.outputs, 32), 128)
        across, down, steps = over(9 * self.inputs, 128), over(self.outputs, wide), over(rows, 64)
        parts = max(1, min(over(4 * self.processors, across * down * CLIENTS), steps // 8))
        parts = over(steps, over(steps, parts))
        if parts > 1:  # else it writes bfloat16
            sums = torch.zeros(parts, *self.w.shape, device="cuda")
            c = Conv(self.x.data_ptr(), self.dy.data_ptr(), sums.data_ptr(), self.w.numel(), rows, self.inputs, self.outputs, self.x.shape[1], self.dy.shape[1])
            c.depth, c.log_a, c.taps, c.stride, c.padding = 9 * self.inputs, (self.inputs // 8).bit_length() - 1, 9, 1, 1
            c.height = c.width = self.side
            c.parts, c.image, c.row = parts, Div.by(self.side**2), Div.by(self.side)
            name, shared = f"hopper_weight_{wide}", max(3 * (128 + wide) * 128, 136 * wide * 4)
            run = lambda: kernels.launch(name, (across, down, CLIENTS * parts), 256, shared, c)  # noqa: E731
            report(name, run, lambda: sums.sum(0), self.weight(self.x.float(), self.dy.float()), self.operations)

    def rows(self, kernels, name, p, out, columns, expected):
        """Forward or backward by patch.cu; `expected` is what `out` and the sums should be."""
        wide = 64 if kernels.has(name.format(64)) and columns >= 64 else 32
        name = name.format(wide)
        channels = self.inputs if "forward" in name else self.outputs
        if not kernels.has(name) or 9 * channels * wide * 2 > SHARED // 2:
            return
        threads = kernels.threads(name)
        blocks = max(1, min(over(self.tiles, threads // 128), self.processors // (CLIENTS * over(columns, wide))))
        if p.gate_mean or p.add:  # with sums
            partial = torch.full((2, blocks * threads // 128, 2, CLIENTS * columns), math.nan, device="cuda")
            p.partial = partial.data_ptr()
        out.zero_()
        grid = (blocks, over(columns, wide), CLIENTS)
        report(name, lambda: kernels.launch(name, grid, threads, SHARED, p), lambda: out, expected, self.operations)
        if p.partial:
            rows = out.float().reshape(2, IMAGES // 2, CLIENTS * columns, -1)
            second = rows
            if p.gate_mean:
                second = (self.x.float() - by_view(self.mean, self.x)).reshape(rows.shape)
            sums = torch.stack([rows.sum((1, 3)), (rows * second).sum((1, 3))], 1)
            error = ((partial.sum(1) - sums).norm() / sums.norm()).item()
            print(f"  {'  its sums':42} error {error:7.1e}")

    def patches(self, kernels):
        y, dx = torch.empty_like(self.dy), torch.empty_like(self.x)
        copied_in, copied_out = min(self.inputs, 64), min(self.outputs, 64)
        p = self.patch(self.x, self.w, y)
        self.rows(kernels, f"patch_forward_{copied_in}_{{}}", p, y, self.outputs, self.forward(self.x.float()))
        p.scale, p.shift, p.add = self.scale.data_ptr(), self.shift.data_ptr(), self.add_y.data_ptr()
        expected = self.forward(self.normalised()) + self.add_y.float()
        self.rows(kernels, f"patch_forward_normalised_{copied_in}_{{}}", p, y, self.outputs, expected)
        p = self.patch(self.dy, self.w, dx)
        self.rows(kernels, f"patch_backward_{copied_out}_{{}}", p, dx, self.inputs, self.backward(self.dy.float()))
        self.combine(p)
        p.gate, p.gate_scale, p.gate_shift, p.gate_mean = (t.data_ptr() for t in (self.x, self.scale, self.shift, self.mean))
        x = self.x.float()
        open_gate = x * by_view(self.scale, x) + by_view(self.shift, x) > 0
        self.rows(kernels, f"patch_backward_combined_{copied_out}_{{}}", p, dx, self.inputs, self.backward(self.combined()) * open_gate)

    def combine(self, p):
        p.other = self.z.data_ptr()
        p.factor0, p.factor1, p.factor2 = (factor.data_ptr() for factor in self.factors)

    def weights(self, kernels):
        high, wide = min(self.inputs, 64), min(self.outputs, 64)
        for kind, x, dy in (
            ("", self.x.float(), self.dy.float()),
            ("normalised_", self.normalised(), self.dy.float()),
            ("combined_", self.x.float(), self.combined()),
            ("normalised_combined_", self.normalised(), self.combined()),
        ):
            name = f"patch_weight_{kind}{high}_{wide}"
            if not kernels.has(name):
                continue
            parts = max(1, min(self.tiles, self.processors // (over(self.inputs, high) * over(self.outputs, wide) * CLIENTS)))
            sums = torch.zeros(parts, *self.w.shape, device="cuda")
            p = self.patch(self.x, self.dy, sums, parts)
            p.scale, p.shift = self.scale.data_ptr(), self.shift.data_ptr()
            self.combine(p)
            grid = (self.inputs // high, self.outputs // wide, CLIENTS * parts)
            report(name, lambda: kernels.launch(name, grid, 384, SHARED, p), lambda: sums.sum(0), self.weight(x, dy), self.operations)  # noqa: B023


def main():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        sys.exit("error: these kernels need a Hopper GPU")
    torch.zeros(1, device="cuda")  # makes the context
    patch = Path(sys.argv[1]) if sys.argv[1:] else CPP / "patch.cu"
    kernels = Kernels(patch, sys.argv[2:])
    for inputs, outputs, side in SHAPES:
        print(f"{inputs} -> {outputs} channels, {side} x {side} pixels")
        layer = Layer(inputs, outputs, side)
        layer.hopper(kernels)
        layer.patches(kernels)
        layer.weights(kernels)


if __name__ == "__main__":
    main()
