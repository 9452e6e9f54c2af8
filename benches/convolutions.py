#!/usr/bin/env python3
"""Time the convolution kernels of crates/cuda/cpp on a Hopper GPU, and check them against PyTorch:

    python3 benches/convolutions.py [FILE.cu [NAME=VALUE ...]]

For the shapes of WRN-28-2 and ResNet-18 with ten clients and two views of ten images each, it prints the relative
error and the microseconds of forward, input and weight kernels: those of hopper.cu and those of patch.cu. FILE.cu is tried
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

CPP = Path(__file__).resolve().parent.parent / "crates/cuda/cpp"
CLIENTS, IMAGES = 10, 20
# Channels in and out of a client, side of the image.
SHAPES = [(16, 32, 32), (32, 32, 32), (64, 64, 16), (128, 128, 8), (64, 64, 32), (128, 128, 16), (256, 256, 8)]


def over(a, b):
    return -(-a // b)


def whole(size):
    return over(size, 1024) * 1024


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


class Map(ctypes.Structure):
    """A CUtensorMap: how boxes of a tensor are copied."""

    _fields_ = [("words", ctypes.c_ulonglong * 16)]

    @staticmethod
    def of(tensor, sizes, strides, box):
        """Sizes, strides from the second axis on and a box's sizes, all beginning with the channels."""
        room, axes = ctypes.create_string_buffer(192), len(sizes)
        at = (ctypes.addressof(room) + 63) // 64 * 64  # where the driver wants it
        numbers = [ctypes.c_uint64 * axes, ctypes.c_uint64 * (axes - 1), ctypes.c_uint32 * axes, ctypes.c_uint32 * axes]
        values = [sizes, [2 * stride for stride in strides], box, [1] * axes]
        arrays = [kind(*value) for kind, value in zip(numbers, values)]
        bfloat16, swizzle, by_128 = 9, {16: 1, 32: 2, 64: 3}[box[0]], 2
        encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
        outcome = encode(ctypes.c_void_p(at), bfloat16, axes, ctypes.c_void_p(tensor.data_ptr()), *arrays, 0, swizzle, by_128, 0)
        check(outcome, f"boxes {box} of {sizes}")
        return Map.from_buffer_copy(ctypes.string_at(at, 128))

    @staticmethod
    def of_images(x, channels, side):
        images, across, height, width = x.shape
        return Map.of(x, [across, width, height, images], [across, width * across, height * width * across], [channels, side, side, 1])

    @staticmethod
    def of_weights(w, inputs, outputs):
        clients, rows, _, _, across = w.shape
        return Map.of(w, [across, 9, clients * rows], [across, 9 * across], [inputs, 1, outputs])


class Patch(ctypes.Structure):
    maps, numbers = [(name, Map) for name in ("a", "b", "out", "add")], "inputs outputs tiles parts added view_tiles".split()
    pointers = [(name, ctypes.c_void_p) for name in ("partial", "sums")]
    # A multiple of 64 bytes, as the maps ask for.
    _fields_ = [*maps, *pointers, ("part", ctypes.c_longlong), *((n, ctypes.c_int) for n in numbers), ("image", Div), ("row", Div), ("end", ctypes.c_int * 14)]


class Kernels:
    """The kernels, compiled for this GPU."""

    def __init__(self, patch, macros):
        self.cuda, nvrtc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(nvrtc_library())
        source = "".join(path.read_text() for path in (*(CPP / f"{name}.cu" for name in ("kernels", "conv", "hopper")), patch))
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


class Layer:
    """One convolution of ten clients and its gradients."""

    def __init__(self, inputs, outputs, side):
        self.inputs, self.outputs, self.side = inputs, outputs, side
        torch.manual_seed(0)
        self.x, self.dy = self.images(inputs), self.images(outputs)
        self.w = (torch.randn(CLIENTS, outputs, 3, 3, inputs, device="cuda") / math.sqrt(9 * inputs)).bfloat16()
        x, dy, w = self.x.float(), self.dy.float(), self.w.permute(0, 1, 4, 2, 3).flatten(0, 1).float()
        dw = conv2d_weight(x, w.shape, dy, padding=1, groups=CLIENTS)
        self.expected = {
            "forward": conv2d(x, w, padding=1, groups=CLIENTS),
            "backward": conv2d_input(x.shape, w, dy, padding=1, groups=CLIENTS),
            "weight": dw.reshape(CLIENTS, outputs, inputs, 3, 3).permute(0, 1, 3, 4, 2),
        }
        self.operations = 2 * IMAGES * side * side * CLIENTS * outputs * 9 * inputs
        self.rows, self.tiles = IMAGES * side * side, IMAGES * (side // 8) ** 2
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count

    def images(self, channels):
        size = (IMAGES, CLIENTS * channels, self.side, self.side)
        return torch.randn(size, device="cuda").bfloat16().to(memory_format=torch.channels_last)

    def directions(self):
        """Forward and the gradient of the input: what is read, its channels, what is written, its channels."""
        yield "forward", self.x, self.inputs, torch.zeros_like(self.dy), self.outputs
        yield "backward", self.dy, self.outputs, torch.zeros_like(self.x), self.inputs

    def conv(self, a, b, out, channels, parts=1):
        c = Conv(a.data_ptr(), b.data_ptr(), out.data_ptr(), self.w.numel(), self.rows, self.inputs, self.outputs, a.shape[1], b.shape[1], out.shape[1])
        c.depth, c.log_a, c.taps, c.stride, c.padding = 9 * self.inputs, (channels // 8).bit_length() - 1, 9, 1, 1
        c.height = c.width = self.side
        c.parts, c.image, c.row = parts, Div.by(self.side**2), Div.by(self.side)
        return c

    def patch(self, maps, parts=1):
        p = Patch(*maps, part=self.w.numel(), inputs=self.inputs, outputs=self.outputs, tiles=self.tiles, parts=parts)
        p.image, p.row = Div.by((self.side // 8) ** 2), Div.by(self.side // 8)
        return p

    def report(self, kernels, name, grid, threads, shared, arguments, direction, found):
        def run():
            kernels.launch(name, grid, threads, shared, arguments)

        report(name, run, found, self.expected[direction], self.operations)

    def hopper(self, kernels):
        def shared(wide):
            return max(3 * (128 + wide) * 128, 136 * wide * 4)

        for direction, a, channels, out, columns in self.directions():
            wide = 128 if columns >= 128 else 64 if columns >= 64 else 32
            if wide == 128 and over(self.rows, 128) * over(columns, 128) * CLIENTS < 2 * self.processors:
                wide = 64
            grid, c = (over(self.rows, 128), over(columns, wide), CLIENTS), self.conv(a, self.w, out, channels)
            self.report(kernels, f"hopper_{direction}_{wide}", grid, 256, shared(wide), c, direction, lambda out=out: out)
        wide = min(max(self.outputs, 32), 128)
        across, down, steps = over(9 * self.inputs, 128), over(self.outputs, wide), over(self.rows, 64)
        parts = max(1, min(over(4 * self.processors, across * down * CLIENTS), steps // 8))
        parts = over(steps, over(steps, parts))
        if parts > 1:  # else it writes bfloat16
            sums = torch.zeros(parts, *self.w.shape, device="cuda")
            grid, c = (across, down, CLIENTS * parts), self.conv(self.x, self.dy, sums, self.inputs, parts)
            self.report(kernels, f"hopper_weight_{wide}", grid, 256, shared(wide), c, "weight", lambda: sums.sum(0))

    def patches(self, kernels):
        for direction, a, channels, out, columns in self.directions():
            forward, name = direction == "forward", f"patch_{direction}_{channels}_{columns}"
            if kernels.has(name):
                maps = Map.of_images(a, channels, 10), Map.of_weights(self.w, self.inputs, self.outputs), Map.of_images(out, columns, 8)
                shared = 3 * (3 * whole(200 * channels) + whole(128 * columns)) + 9 * whole(channels * columns * 2)
                blocks = min(over(self.tiles, 3), self.processors // CLIENTS)
                self.report(kernels, name, (blocks, 1, CLIENTS), 384, shared, self.patch(maps), direction, lambda out=out: out)
            for wide in (64, 128):
                if channels % 64 or columns % wide:
                    continue
                maps = Map.of_images(a, 64, 10), Map.of_weights(self.w, 64, wide if forward else 64), Map.of_images(out.zero_(), 64, 8)
                grid, shared = (over(self.tiles, 2), columns // wide, CLIENTS), 4 * whole(12800) + 3 * wide * 128
                self.report(kernels, f"patch_{direction}_wide_{wide}", grid, 288, shared, self.patch(maps), direction, lambda out=out: out)
        high, wide = min(self.inputs, 64), min(self.outputs, 64)
        name, blocks = f"patch_weight_{high}_{wide}", self.inputs // high * (self.outputs // wide) * CLIENTS
        if kernels.has(name):
            parts = max(1, min(self.tiles, self.processors // blocks))
            sums = torch.zeros(parts, *self.w.shape, device="cuda", dtype=torch.float if parts > 1 else torch.bfloat16)
            p = self.patch((Map.of_images(self.x, high, 10), Map.of_images(self.dy, wide, 8), Map()), parts)
            p.sums = sums.data_ptr()
            grid, shared = (self.inputs // high, self.outputs // wide, CLIENTS * parts), 5 * (whole(200 * high) + whole(128 * wide))
            self.report(kernels, name, grid, 384, shared, p, "weight", lambda: sums.sum(0))


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


if __name__ == "__main__":
    main()
