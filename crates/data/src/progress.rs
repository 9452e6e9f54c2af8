//! Progress of reading many pictures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that is called, from any thread, with the number of pictures done and their total. By default there is
/// none.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Fn(usize, usize) + Send + Sync>>);

impl Progress {
    /// Calls this function.
    pub fn new(tell: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    /// A counter of `total` pictures, at 0.
    pub(crate) fn count(&self, total: usize) -> Count<'_> {
        Count { progress: self, done: AtomicUsize::new(0), total }
    }
}

/// The pictures that are done.
pub(crate) struct Count<'a> {
    progress: &'a Progress,
    done: AtomicUsize,
    total: usize,
}

impl Count<'_> {
    /// Adds some.
    pub fn add(&self, count: usize) {
        if count > 0
            && let Some(tell) = &self.progress.0
        {
            tell(self.done.fetch_add(count, Ordering::Relaxed) + count, self.total);
        }
    }
}
