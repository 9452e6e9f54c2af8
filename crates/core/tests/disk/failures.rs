//! Every call to the disk fails once, and the power is cut after every call.

use crate::{Bench, all_files, assert_same, copy, learnt, step};
use fedanchor_disk::inject::Injector;

const EIO: i32 = 5;
const EACCES: i32 = 13;
const ENOSPC: i32 = 28;

/// A new run whose N-th call fails ends with that error, and then goes on as if nothing had happened.
#[test]
fn a_call_that_fails_costs_no_more_than_its_round() {
    let bench = Bench::new(&["method.name=fedcon", "method.predictor=32"]);
    let expected = bench.reference();
    let watched = bench.at("watched");
    std::fs::create_dir(&watched).unwrap();
    let injector = Injector::new(&watched).unwrap();
    bench.go_on(&watched.join("run")).1.unwrap();
    let calls = injector.calls();
    drop(injector);
    std::fs::remove_dir_all(&watched).unwrap();
    assert!(calls.len() > 100, "{}", calls.len());
    for at in (0..calls.len()).step_by(step(calls.len(), 40)) {
        let error = [EIO, ENOSPC, EACCES][at % 3];
        std::fs::create_dir(&watched).unwrap();
        let injector = Injector::new(&watched).unwrap();
        injector.fail(at, error);
        let out = watched.join("run");
        let (_, ended) = bench.go_on(&out);
        let problem = ended.unwrap_err().to_string();
        let failed = injector.calls()[at].clone();
        assert!(problem.contains(&format!("os error {error}")), "{failed}: {problem}");
        drop(injector);
        let (_, ended) = bench.go_on(&out);
        ended.unwrap_or_else(|error| panic!("{failed}: {error}"));
        assert_same(&learnt(&out), &expected, &failed);
        let found = fedanchor::verify(&out).unwrap();
        assert!(found.is_intact(), "{failed}: {found:?}");
        std::fs::remove_dir_all(&watched).unwrap();
    }
}

/// The same for a run that is resumed: nothing that was saved is lost, whatever cannot be read.
#[test]
fn a_call_that_fails_while_a_run_is_resumed_loses_nothing() {
    let bench = Bench::new(&["method.name=fedcon", "method.predictor=32"]);
    let expected = bench.reference();
    let half = bench.at("half");
    bench.go_until(&half, 2).1.unwrap();
    let watched = bench.at("watched");
    let out = watched.join("run");
    copy(&half, &out);
    let injector = Injector::new(&watched).unwrap();
    bench.go_on(&out).1.unwrap();
    let calls = injector.calls();
    drop(injector);
    std::fs::remove_dir_all(&watched).unwrap();
    for at in (0..calls.len()).step_by(step(calls.len(), 30)) {
        copy(&half, &out);
        let injector = Injector::new(&watched).unwrap();
        injector.fail(at, EIO);
        let (_, ended) = bench.go_on(&out);
        let failed = injector.calls()[at].clone();
        let problem = ended.unwrap_err().to_string();
        assert!(problem.contains("os error 5"), "{failed}: {problem}");
        drop(injector);
        let (notices, ended) = bench.go_on(&out);
        ended.unwrap_or_else(|error| panic!("{failed}: {error}"));
        let damaged: Vec<_> = notices.iter().filter(|note| note.contains("damaged")).collect();
        assert!(damaged.is_empty(), "{failed}: {damaged:?}");
        assert_same(&learnt(&out), &expected, &failed);
        std::fs::remove_dir_all(&watched).unwrap();
    }
}

/// What a power cut leaves is the disk as far as it was synced.
#[test]
fn a_power_cut_costs_the_round_in_progress_and_nothing_of_a_finished_run() {
    let bench = Bench::new(&["method.name=fedcon", "method.predictor=32"]);
    let expected = bench.reference();
    let watched = bench.at("watched");
    std::fs::create_dir(&watched).unwrap();
    let injector = Injector::new(&watched).unwrap();
    bench.go_on(&watched.join("run")).1.unwrap();
    let calls = injector.calls();
    let survivors = bench.at("survivors");
    injector.power_cut(calls.len(), &survivors).unwrap();
    let (mut left, written) = (all_files(&survivors), all_files(&watched));
    // Checkpoints that were removed may be back.
    left.retain(|name, _| written.contains_key(name) || !name.starts_with("run/checkpoints/"));
    assert_same(&left, &written, "a finished run");
    for cut in (0..calls.len()).step_by(step(calls.len(), 40)) {
        std::fs::remove_dir_all(&survivors).unwrap();
        injector.power_cut(cut, &survivors).unwrap();
        let out = survivors.join("run");
        let (_, ended) = bench.go_on(&out);
        ended.unwrap_or_else(|error| panic!("after {cut} calls, {}: {error}", calls[cut]));
        assert_same(&learnt(&out), &expected, &format!("after {cut} calls, before {}", calls[cut]));
    }
}
