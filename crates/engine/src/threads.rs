//! Threads that an operation of libtorch is split over.

use std::sync::OnceLock;

/// The number of threads that libtorch chose for this machine.
pub fn default_threads() -> i32 {
    static DEFAULT: OnceLock<i32> = OnceLock::new();
    *DEFAULT.get_or_init(tch::get_num_threads)
}

/// Sets the number of threads that this thread's operations are split over.
///
/// libtorch keeps that number per thread, but a thread takes over the last number set anywhere in the
/// process when it first asks for its own, even if it has set one before. So it asks first: from then on
/// concurrent runs do not disturb each other.
pub fn set_threads(threads: i32) {
    default_threads();
    let _ = tch::get_num_threads();
    tch::set_num_threads(threads);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A number that another run sets does not reach a thread that has set its own before.
    #[test]
    fn a_thread_keeps_its_own_number() {
        let (set, ready) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            set_threads(1);
            set.send(()).unwrap();
            wait.recv().unwrap();
            tch::get_num_threads()
        });
        ready.recv().unwrap();
        let before = tch::get_num_threads();
        tch::set_num_threads(3);
        go.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), 1);
        tch::set_num_threads(before);
    }
}
