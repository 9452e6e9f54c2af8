//! Captured work and uploads on a GPU; CONTRIBUTING says how to run these tests.

#![allow(clippy::unwrap_used)]

use fedanchor_cuda::{
    CudaError, Expected, Graph, Kernels, Norm, Queue, Statistics, Upload, is_available,
    peak_memory, setup,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tch::{Cuda, Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

/// Prepares the GPU to test on.
fn gpu() {
    assert!(is_available() && Cuda::is_available(), "no GPU, or built without CUDA");
    setup(0, None, Kernels::Fitting).unwrap();
}

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values).to_device(GPU)
}

fn read(tensor: &Tensor) -> Vec<f32> {
    Vec::<f32>::try_from(tensor.to_device(Device::Cpu)).unwrap()
}

fn failure<T: std::fmt::Debug>(outcome: Result<T, CudaError>) -> String {
    let Err(CudaError::Failed(reason)) = outcome else { panic!("{outcome:?}") };
    reason
}

/// `total` += `total`, in place.
fn doubled(total: &Tensor) -> Result<(), CudaError> {
    total.shallow_clone().f_add_(total).map(drop).map_err(|e| CudaError::Failed(e.to_string()))
}

/// Everything that a capture changes for its time works as before it: memory, random numbers, further
/// captures, reading from the GPU.
#[track_caller]
fn assert_usable() {
    let total = floats(&[1.0, 2.0]);
    let (graph, ()) = Graph::capture(None, || doubled(&total)).unwrap();
    graph.replay().unwrap();
    assert_eq!(read(&total), [2.0, 4.0]);
    let noise = Tensor::rand([1 << 20], (Kind::Float, GPU));
    assert!((noise.mean(Kind::Float).double_value(&[]) - 0.5).abs() < 0.01);
    drop(noise);
    fedanchor_cuda::empty_cache().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn a_graph_repeats_what_was_captured() {
    gpu();
    let stream = Queue::new(0).unwrap();
    let copies = Queue::new(0).unwrap();
    let _entered = stream.enter().unwrap();
    let input = Tensor::zeros([4], (Kind::Uint8, GPU));
    let total = Tensor::zeros([4], (Kind::Float, GPU));
    let (graph, ()) = Graph::capture(None, || {
        let _ = total.shallow_clone().f_add_(&input.f_to_kind(Kind::Float).unwrap()).unwrap();
        Ok::<_, CudaError>(())
    })
    .unwrap();
    let mut upload = Upload::new(0, 4).unwrap();
    for step in 1..=3u8 {
        upload.memory().unwrap().copy_from_slice(&[step, 0, 2 * step, 1]);
        upload.start(&copies, 4).unwrap();
        upload.take(&input).unwrap();
        graph.replay().unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(Vec::<f32>::try_from(total.to_device(Device::Cpu)).unwrap(), [6.0, 0.0, 12.0, 3.0]);
}

#[test]
#[ignore = "needs a GPU"]
fn a_panic_inside_a_capture_leaves_the_stream_usable() {
    gpu();
    let stream = Queue::new(0).unwrap();
    let _entered = stream.enter().unwrap();
    let total = floats(&[1.0]);
    for share in [false, true] {
        let other = share.then(|| Graph::capture(None, || Ok::<_, CudaError>(())).unwrap().0);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            Graph::capture(other.as_ref(), || -> Result<(), CudaError> {
                let kept = &total + &total;
                doubled(&total)?;
                panic!("inside, with {:?} alive", kept.size())
            })
        }));
        assert!(panic.is_err());
        assert_usable();
    }
    assert_eq!(read(&total), [1.0], "nothing of a discarded capture is executed");
}

#[test]
#[ignore = "needs a GPU"]
fn a_failure_inside_a_capture_leaves_the_stream_usable() {
    gpu();
    let stream = Queue::new(0).unwrap();
    let _entered = stream.enter().unwrap();
    let total = floats(&[1.0]);
    let failed: Result<(Graph, ()), _> = Graph::capture(None, || {
        doubled(&total)?;
        Err(CudaError::Failed("of the work".to_owned()))
    });
    assert_eq!(failure(failed), "of the work");
    assert_usable();
    // Reading from the GPU ends a capture from outside, whether the work reports it or not.
    let reported = Graph::capture(None, || {
        total.f_double_value(&[0]).map_err(|error| CudaError::Failed(error.to_string()))
    });
    failure(reported.map(|(_, value)| value));
    assert_usable();
    let ignored = Graph::capture(None, || {
        let _ = total.f_double_value(&[0]);
        Ok::<_, CudaError>(())
    });
    failure(ignored.map(drop));
    assert_usable();
    assert_eq!(read(&total), [1.0]);
}

#[test]
#[ignore = "needs a GPU"]
fn captures_are_not_nested_and_not_on_the_default_stream() {
    gpu();
    failure(Graph::capture(None, || Ok::<_, CudaError>(())).map(drop));
    let stream = Queue::new(0).unwrap();
    let _entered = stream.enter().unwrap();
    let total = floats(&[1.0]);
    let (graph, inner) = Graph::capture(None, || {
        let inner = Graph::capture(None, || Ok::<_, CudaError>(())).map(drop);
        doubled(&total)?;
        Ok::<_, CudaError>(inner)
    })
    .unwrap();
    assert!(failure(inner).contains("already"));
    graph.replay().unwrap();
    assert_eq!(read(&total), [2.0]);
    assert_usable();
}

/// A guard that is never dropped leaves another stream current: the capture ends on its own.
#[test]
#[ignore = "needs a GPU"]
fn a_capture_ends_on_the_stream_it_began_on() {
    gpu();
    let (stream, other) = (Queue::new(0).unwrap(), Queue::new(0).unwrap());
    let entered = stream.enter().unwrap();
    let total = floats(&[1.0]);
    let (graph, ()) = Graph::capture(None, || {
        doubled(&total)?;
        std::mem::forget(other.enter().unwrap());
        Ok::<_, CudaError>(())
    })
    .unwrap();
    assert!(failure(graph.replay()).contains("stream"), "the other one is still current");
    let _back = stream.enter().unwrap();
    graph.replay().unwrap();
    assert_eq!(read(&total), [2.0]);
    drop((_back, entered));
}

/// The memory of tensors that are gone by then is not given to others while a graph uses it.
#[test]
#[ignore = "needs a GPU"]
fn a_graph_holds_the_memory_it_uses() {
    gpu();
    let stream = Queue::new(0).unwrap();
    let _entered = stream.enter().unwrap();
    let size = [64, 8, 64, 64]; // 8 MiB each
    let full = |value: f64| Tensor::full(size, value, (Kind::Float, GPU));
    let one = || Tensor::ones([8], (Kind::Float, GPU));
    let out = full(0.0);
    let channels_last = |x: Tensor| x.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
    let (x, mean, variance) = (channels_last(full(1.0)), one(), one());
    let weight = one().set_requires_grad(true);
    let work = || {
        let norm = Norm {
            weight: &weight,
            bias: &one(),
            mean: &mean,
            variance: &variance,
            statistics: Statistics::Update(1.0),
            views: 1,
            epsilon: 1.0,
            relu: false,
            sums: None,
        };
        let (y, _) = norm.forward(&x, None, false)?; // 0 * weight + 1, and the running mean becomes 1
        let gradient =
            Tensor::run_backward(&[(&y * &x).sum(Kind::Float)], &[&weight], false, false);
        out.shallow_clone().copy_(&(&y + &x + gradient[0].sum(Kind::Float)).detach());
        Ok::<_, CudaError>(())
    };
    work().unwrap(); // once outside the capture, as in training
    let (graph, ()) = Graph::capture(None, work).unwrap();
    drop((x, weight, mean, variance));
    fedanchor_cuda::empty_cache().unwrap();
    let others: Vec<Tensor> = (0..64).map(|_| full(7.0)).collect();
    let small: Vec<Tensor> = (0..64).map(|_| one() * 7.0).collect();
    let _ = out.shallow_clone().zero_();
    graph.replay().unwrap();
    let all = |tensor: &Tensor, value: f64| {
        let difference = (tensor - value).abs().max().double_value(&[]);
        assert_eq!(difference, 0.0);
    };
    all(&out, 2.0);
    others.iter().chain(&small).for_each(|other| all(other, 7.0));
}

/// Only what was there before: intermediate results share the graph's working memory.
#[test]
#[ignore = "needs a GPU"]
fn a_graph_reuses_the_memory_of_intermediate_results() {
    gpu();
    let stream = Queue::new(0).unwrap();
    let _entered = stream.enter().unwrap();
    let size = 128 << 20; // in bytes
    let x = Tensor::ones([size as i64 / 4], (Kind::Float, GPU)).set_requires_grad(true);
    let step = || {
        let mut y = x.shallow_clone();
        for _ in 0..32 {
            y = y.detach().set_requires_grad(true);
            let gradient =
                Tensor::run_backward(&[(&y * 1.5).sum(Kind::Float)], &[&y], false, false);
            y = gradient[0].shallow_clone();
        }
        Ok::<_, CudaError>(())
    };
    step().unwrap();
    let before = peak_memory(0).unwrap();
    let (graph, ()) = Graph::capture(None, step).unwrap();
    graph.replay().unwrap();
    stream.synchronize().unwrap();
    let grown = peak_memory(0).unwrap() - before;
    assert!(grown <= 8 * size, "{} MiB for results of 128 MiB", grown >> 20);
}

#[test]
#[ignore = "needs a GPU"]
fn a_graph_refuses_tensors_that_were_resized() {
    gpu();
    let stream = Queue::new(0).unwrap();
    let _entered = stream.enter().unwrap();
    let mut total = floats(&[1.0]);
    let (graph, ()) = Graph::capture(None, || doubled(&total)).unwrap();
    let _ = total.resize_([1 << 22]);
    assert!(failure(graph.replay()).contains("resized"));
    assert_usable();
}

#[test]
#[ignore = "needs a GPU"]
fn uploads_bring_what_was_started_and_nothing_else() {
    gpu();
    let (stream, copies) = (Queue::new(0).unwrap(), Queue::new(0).unwrap());
    let _entered = stream.enter().unwrap();
    let mut upload = Upload::new(0, 8).unwrap();
    assert_eq!(upload.memory().unwrap(), [0; 8]);
    let bytes = |count: i64| Tensor::full([count], 9, (Kind::Uint8, GPU));
    let refused = |expected, found| {
        let expected = Expected::Between(0, expected);
        CudaError::refused("bytes of the destination", expected, found)
    };
    assert_eq!(upload.take(&bytes(1)).unwrap_err(), refused(0, 1));
    upload.memory().unwrap().copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    upload.start(&copies, 4).unwrap();
    assert_eq!(upload.take(&bytes(5)).unwrap_err(), refused(4, 5));
    let host = Tensor::zeros([4], (Kind::Uint8, Device::Cpu));
    let device = CudaError::refused("to", format!("a tensor on {GPU:?}"), "one on Cpu");
    assert_eq!(upload.take(&host).unwrap_err(), device);
    let to = bytes(4);
    upload.take(&to).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(Vec::<u8>::try_from(to.to_device(Device::Cpu)).unwrap(), [1, 2, 3, 4]);
    // A graph would read the pinned memory whenever it is replayed.
    let (_graph, both) =
        Graph::capture(None, || Ok::<_, CudaError>((upload.take(&to), upload.start(&stream, 4))))
            .unwrap();
    assert!(failure(both.0).contains("graph") && failure(both.1).contains("graph"));
    Upload::new(0, 0).unwrap().memory().unwrap().fill(1);
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_that_is_not_there_is_an_error() {
    gpu();
    failure(Queue::new(100).map(drop));
    failure(Upload::new(100, 8).map(drop));
    failure(setup(100, None, Kernels::Fitting));
    failure(peak_memory(100));
}
