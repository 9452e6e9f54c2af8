//! Which steps have been captured, and which captured step may be replayed for which call.
//!
//! A capture records operations on fixed addresses with the constants of the captured call. Its key therefore holds
//! everything that the operations depend on: the workspace (addresses), the kind of step (loss, trained entries, batch
//! norm, further networks), the number of clients and the bytes of input. The rule is the same for CUDA graphs and for
//! the recorder that stands in for them on a CPU ([`Recorder`]).

use crate::tensors::Layout;
use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

/// Calls of a step before it is captured: the second makes sure that every library has chosen its algorithm.
const WARM_UP: u32 = 2;

/// Kinds of step that a workspace keeps captured. A loss whose constants change is a new kind each time: the oldest
/// are dropped, so that captures do not pile up.
const KINDS: usize = 4;

/// What a captured step depends on except addresses, sizes and inputs: any value that can be compared.
pub(crate) trait StepKind: Any + Debug + Send + Sync {
    fn equals(&self, other: &dyn StepKind) -> bool;
}

impl<T: Any + Debug + Send + Sync + PartialEq> StepKind for T {
    fn equals(&self, other: &dyn StepKind) -> bool {
        (other as &dyn Any).downcast_ref() == Some(self)
    }
}

/// The key of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepKey {
    /// The number of the workspace.
    pub(crate) workspace: u64,
    /// The number of the kind, from [`Steps::kind`]; [`FORWARD`] for a pass without a loss.
    pub(crate) kind: u64,
    pub(crate) active: usize,
    pub(crate) bytes: usize,
}

/// The kind of a pass without gradients: what it computes depends on its workspace alone.
pub(crate) const FORWARD: u64 = 0;

/// A kind of step and its number.
type Numbered = (u64, Arc<dyn StepKind>);

/// The steps of a run; `C` is a captured one.
#[derive(Debug)]
pub(crate) struct Steps<C> {
    /// By workspace, the most recently used last.
    kinds: HashMap<u64, VecDeque<Numbered>>,
    steps: HashMap<StepKey, Step<C>>,
    numbers: u64,
    /// Whether a kind has been dropped.
    dropped: bool,
    /// What the user should know, in order.
    pub(crate) notices: VecDeque<String>,
    /// Why steps could not be captured, so that each reason is reported once.
    reasons: HashSet<String>,
}

#[derive(Debug)]
enum Step<C> {
    Seen(u32),
    Captured(C),
    /// It could not be captured.
    Refused,
}

/// How to run a step.
pub(crate) enum Next<'a, C> {
    /// Operation by operation.
    Run,
    /// Capture it and replay it.
    Capture,
    /// Replay this.
    Replay(&'a C),
}

impl<C> Default for Steps<C> {
    fn default() -> Self {
        let (kinds, steps, notices, reasons) = Default::default();
        Self { kinds, steps, numbers: FORWARD, dropped: false, notices, reasons }
    }
}

impl<C> Steps<C> {
    /// A number that was not given before.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The number of a kind of step: equal kinds have the same.
    pub(crate) fn kind(&mut self, workspace: u64, kind: Arc<dyn StepKind>) -> u64 {
        let fresh = self.number();
        let kinds = self.kinds.entry(workspace).or_default();
        let known = kinds.iter().position(|(_, known)| known.equals(&*kind));
        let (number, kind) = known.and_then(|at| kinds.remove(at)).unwrap_or((fresh, kind));
        kinds.push_back((number, kind));
        if kinds.len() > KINDS
            && let Some((oldest, kind)) = kinds.pop_front()
        {
            self.steps.retain(|key, _| key.kind != oldest);
            if !std::mem::replace(&mut self.dropped, true) {
                self.notices.push_back(format!(
                    "training is slow: steps are captured again in every round because fields of their loss change; pass \
                     what changes with `Objective::with_scalars` ({kind:?})"
                ));
            }
        }
        number
    }

    /// How to run a step this time.
    pub(crate) fn next(&mut self, key: StepKey) -> Next<'_, C> {
        match self.steps.entry(key).or_insert(Step::Seen(0)) {
            Step::Captured(captured) => Next::Replay(captured),
            Step::Refused => Next::Run,
            Step::Seen(times) if *times >= WARM_UP => Next::Capture,
            Step::Seen(times) => {
                *times += 1;
                Next::Run
            }
        }
    }

    /// Keeps a captured step.
    pub(crate) fn captured(&mut self, key: StepKey, captured: C) {
        self.steps.insert(key, Step::Captured(captured));
    }

    /// Runs a step operation by operation from now on, because it cannot be captured. Others still are.
    pub(crate) fn refuse(&mut self, key: StepKey, why: impl std::fmt::Display) {
        self.steps.insert(key, Step::Refused);
        if self.reasons.insert(why.to_string()) {
            self.notices.push_back(format!(
                "a training step cannot be captured as a CUDA graph and runs one operation at a time: {why}"
            ));
        }
    }

    /// Any captured step.
    pub(crate) fn any(&self) -> Option<&C> {
        self.steps.values().find_map(|step| match step {
            Step::Captured(captured) => Some(captured),
            Step::Seen(_) | Step::Refused => None,
        })
    }

    /// Drops the steps of a workspace.
    pub(crate) fn forget(&mut self, workspace: u64) {
        self.kinds.remove(&workspace);
        self.steps.retain(|key, _| key.workspace != workspace);
    }

    /// Drops all steps.
    pub(crate) fn clear(&mut self) {
        self.kinds.clear();
        self.steps.clear();
    }
}

/// Stands in for CUDA graphs on a CPU, so that tests can run what a GPU would replay: a captured step is its kind at
/// the time of the capture, and replaying it is running that kind again, whatever is asked for by then.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) steps: Steps<Arc<dyn StepKind>>,
    workspaces: Vec<(&'static str, Layout, u64)>,
    /// Steps that were replayed so far.
    pub(crate) replayed: u64,
}

impl Recorder {
    /// What a GPU would run where `asked` is asked for, by this many clients with this many bytes.
    pub(crate) fn choose(
        &mut self,
        name: &'static str,
        layout: &Layout,
        (active, bytes): (usize, usize),
        asked: Arc<dyn StepKind>,
    ) -> Arc<dyn StepKind> {
        let workspace = self.workspace(name, layout);
        let kind = self.steps.kind(workspace, asked.clone());
        let key = StepKey { workspace, kind, active, bytes };
        match self.steps.next(key) {
            Next::Replay(captured) => {
                self.replayed += 1;
                captured.clone()
            }
            Next::Run => asked,
            Next::Capture => {
                self.steps.captured(key, asked.clone());
                asked
            }
        }
    }

    /// The number of the workspace that a GPU would train in.
    fn workspace(&mut self, name: &'static str, layout: &Layout) -> u64 {
        let known = self.workspaces.iter().find(|(n, l, _)| *n == name && l == layout);
        known.map(|(_, _, number)| *number).unwrap_or_else(|| {
            let number = self.steps.number();
            self.workspaces.push((name, layout.clone(), number));
            number
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Weighted(f64);

    #[derive(Debug, PartialEq)]
    struct Other(f64);

    fn key(kind: u64, active: usize) -> StepKey {
        StepKey { workspace: 1, kind, active, bytes: 8 }
    }

    #[test]
    fn equal_kinds_are_one_and_all_others_are_not() {
        let mut steps = Steps::<()>::default();
        let first = steps.kind(1, Arc::new(Weighted(0.5)));
        assert_eq!(steps.kind(1, Arc::new(Weighted(0.5))), first);
        let others = [
            steps.kind(1, Arc::new(Weighted(0.25))),
            steps.kind(1, Arc::new(Other(0.5))),
            steps.kind(2, Arc::new(Weighted(0.5))),
        ];
        assert!(others.iter().all(|other| *other != first), "{first} {others:?}");
        // Not equal to itself, so never replayed.
        let nan = steps.kind(3, Arc::new(Weighted(f64::NAN)));
        assert_ne!(steps.kind(3, Arc::new(Weighted(f64::NAN))), nan);
    }

    #[test]
    fn a_step_is_captured_at_its_third_call_and_replayed_from_then_on() {
        let mut steps = Steps::default();
        let captured = |steps: &mut Steps<&'static str>, key| match steps.next(key) {
            Next::Run => "run",
            Next::Capture => "capture",
            Next::Replay(captured) => captured,
        };
        for expected in ["run", "run", "capture"] {
            assert_eq!(captured(&mut steps, key(1, 2)), expected);
        }
        steps.captured(key(1, 2), "first");
        assert_eq!(captured(&mut steps, key(1, 2)), "first");
        assert_eq!(captured(&mut steps, key(1, 3)), "run");
        // One that cannot be captured runs as it is, and costs no other its capture; the reason is reported once.
        steps.refuse(key(1, 3), "no memory");
        steps.refuse(key(1, 4), "no memory");
        steps.notices.push_back("something else".to_owned());
        assert_eq!(captured(&mut steps, key(1, 3)), "run");
        assert_eq!(captured(&mut steps, key(1, 2)), "first");
        assert!(steps.notices.pop_front().unwrap().ends_with("one operation at a time: no memory"));
        assert_eq!(steps.notices.pop_front().unwrap(), "something else");
        assert_eq!(steps.notices.pop_front(), None);
    }

    #[test]
    fn constants_that_keep_changing_drop_the_oldest_captures_and_are_reported_once() {
        let mut steps = Steps::default();
        let oldest = steps.kind(1, Arc::new(Weighted(0.0)));
        steps.captured(key(oldest, 1), ());
        for changed in 1..10 {
            let number = steps.kind(1, Arc::new(Weighted(f64::from(changed))));
            steps.captured(key(number, 1), ());
        }
        assert_eq!(steps.steps.len(), KINDS);
        assert!(matches!(steps.next(key(oldest, 1)), Next::Run));
        let notice = steps.notices.pop_front().unwrap();
        assert!(notice.contains("`Objective::with_scalars` (Weighted(0.0))"), "{notice}");
        assert_eq!(steps.notices.pop_front(), None);
    }
}
