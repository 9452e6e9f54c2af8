//! A comparison as text for people.

use super::{ChangedSetting, Comparison, Difference, Evidence, Side};
use crate::escape::{self, one_line};
use crate::render::{shown, signed};
use crate::table::Average;

/// Renders a comparison; the text ends with a newline.
pub fn comparison_text(comparison: &Comparison) -> String {
    let Comparison { a, b, .. } = comparison;
    let side = |name: &str, side: &Side| {
        let seeds: Vec<String> = side.runs.iter().map(|run| run.seed.to_string()).collect();
        let what = if seeds.len() == 1 { "seed" } else { "seeds" };
        [
            name.to_owned(),
            side.folder.display().to_string(),
            format!("{}, {what} {}", side.method, seeds.join(", ")),
        ]
    };
    let mut text = aligned(&[side("A", a), side("B", b)]);
    text.push('\n');
    text += &differing_settings(comparison);
    text.push('\n');
    text += &aligned(&results(comparison));
    text.push('\n');
    let [last_ten, last] = [&comparison.last_ten, &comparison.final_accuracy];
    text += &(finding("last ten rounds", last_ten) + "\n");
    text += &(finding("final round", last) + "\n");
    caveats(comparison).iter().for_each(|line| text += &format!("{line}\n"));
    text.push('\n');
    legend(comparison).iter().for_each(|line| text += &format!("{line}\n"));
    for note in &comparison.notes {
        text += &format!("note: {}\n", one_line(note));
    }
    text
}

/// The settings that differ. Another method has other settings: those that only one of the two can have follow
/// from `method.name` and are counted.
fn differing_settings(comparison: &Comparison) -> String {
    let Comparison { a, b, settings, .. } = comparison;
    if settings.is_empty() {
        return "no setting differs\n".to_owned();
    }
    let (own, shared): (Vec<&ChangedSetting>, Vec<_>) = settings.iter().partition(|setting| {
        a.method != b.method
            && setting.key.starts_with("method.")
            && (setting.a.is_none() || setting.b.is_none())
    });
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let title = ["setting that differs", "A", "B"].map(str::to_owned);
    let rows = shared.iter().map(|one| [one.key.clone(), value(&one.a), value(&one.b)]);
    let mut text = aligned(&std::iter::once(title).chain(rows).collect::<Vec<_>>());
    let of_a = own.iter().filter(|setting| setting.a.is_some()).count();
    for (count, method) in [(of_a, &a.method), (own.len() - of_a, &b.method)] {
        if count > 0 {
            let what = if count == 1 { "setting" } else { "settings" };
            text += &format!("and {count} {what} that only {method} has (--json lists them)\n");
        }
    }
    text
}

/// The table of results: what, A, B, and B in relation to A.
fn results(comparison: &Comparison) -> Vec<[String; 4]> {
    let Comparison { a, b, accuracy, last_ten, final_accuracy, .. } = comparison;
    let row = |title: &str, cell: &dyn Fn(&Side) -> String, change: Option<String>| {
        [title.to_owned(), cell(a), cell(b), change.unwrap_or_default()]
    };
    let mean = |title: &str, of: fn(&Side) -> Average, change: &Difference| {
        row(title, &|side| shown(&of(side)), Some(signed(change.mean)))
    };
    let cost = |title: &str, of: fn(&Side) -> Option<Average>, format: fn(f64) -> String| {
        let cell = |side: &Side| of(side).map_or("unknown".to_owned(), |cost| format(cost.mean));
        row(title, &cell, relative(of(a), of(b)))
    };
    let to_accuracy = |what: &str, of: fn(&Side) -> Option<Average>, format: fn(f64) -> String| {
        let cell = |side: &Side| match (of(side), side.runs_with_accuracy, side.runs.len()) {
            (_, 0, _) => "not reached".to_owned(),
            (None, ..) => "unknown".to_owned(),
            (Some(cost), reached, runs) if reached == runs => format(cost.mean),
            (Some(cost), reached, runs) => {
                format!("{} ({reached} of {runs} seeds)", format(cost.mean))
            }
        };
        // The runs that did not reach it may be the ones that would have cost most.
        let all = [a, b].iter().all(|side| side.runs_with_accuracy == side.runs.len());
        let change = if all { relative(of(a), of(b)) } else { None };
        row(&format!("{what} to {accuracy} %"), &cell, change)
    };
    vec![
        ["", "A", "B", "from A to B"].map(str::to_owned),
        mean("test accuracy (%), last ten rounds", |side| side.last_ten, last_ten),
        mean("test accuracy (%), final round", |side| side.final_accuracy, final_accuracy),
        to_accuracy("rounds", |side| side.rounds_to_accuracy, |rounds| format!("{rounds:.1}")),
        to_accuracy("traffic", |side| side.bytes_to_accuracy, bytes),
        to_accuracy("time", |side| side.seconds_to_accuracy, seconds),
        cost("traffic in total", |side| Some(side.bytes), bytes),
        cost("time per round", |side| side.seconds_per_round, seconds),
        cost("time in total", |side| side.seconds, seconds),
    ]
}

/// What one of the two differences amounts to, in a sentence.
fn finding(what: &str, difference: &Difference) -> String {
    let mean = signed(difference.mean);
    let test = match &difference.evidence {
        Evidence::Paired { seeds, .. } => format!("paired t test over {} seeds", seeds.len()),
        Evidence::Welch { .. } => "Welch's t test, unpaired seeds".to_owned(),
        Evidence::TooFewRuns => {
            return format!("{what}: {mean} points from A to B; not tested, for lack of seeds");
        }
    };
    let Some(result) = difference.test() else {
        return format!(
            "{what}: {mean} points from A to B; not tested, for lack of spread ({test})"
        );
    };
    let verdict = if result.significant { "more" } else { "not more" };
    format!(
        "{what}: {mean} points from A to B, {verdict} than the seeds' spread ({test}: 95 % confidence \
         interval {} to {}, {})",
        signed(result.low),
        signed(result.high),
        chance(result.p),
    )
}

fn chance(p: f64) -> String {
    if p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {p:.3}") }
}

/// What can be concluded from these runs, and what cannot.
fn caveats(comparison: &Comparison) -> Vec<&'static str> {
    let Comparison { last_ten, final_accuracy, .. } = comparison;
    let mut lines = Vec::new();
    match &last_ten.evidence {
        Evidence::Paired { seeds, .. } if seeds.len() < 3 => lines.push(
            "with two pairs, only a difference many times their spread can be told from chance, and the \
             interval is wide: run at least three seeds, better five",
        ),
        Evidence::Paired { .. } => {}
        Evidence::Welch { .. } => lines.push(
            "without common seeds, the runs differ in anchors, partition and drawn clients as well: that \
             hides small differences; the same seeds on both sides are compared in pairs",
        ),
        Evidence::TooFewRuns => lines.push(
            "a single run says nothing about the spread between seeds: whether other seeds give the same \
             difference cannot be concluded; run both with the same seeds, at least three (`--seeds 0,1,2`)",
        ),
    }
    let mut tests = [last_ten, final_accuracy].into_iter().filter_map(Difference::test);
    if tests.any(|test| !test.significant) {
        lines.push(
            "not more than the seeds' spread does not mean equal: every difference in the interval agrees with \
             these runs",
        );
    }
    lines
}

fn legend(comparison: &Comparison) -> Vec<String> {
    let mut lines = Vec::new();
    if !comparison.accuracy_given {
        lines.push(format!(
            "{} % is the lower of both final accuracies, rounded down; --accuracy sets another",
            comparison.accuracy
        ));
    }
    lines.push(
        "means over seeds, ± sample standard deviation; traffic in both directions; time in total with \
         pre-training, per round without"
            .to_owned(),
    );
    if [&comparison.a, &comparison.b].iter().any(|side| side.seconds_per_round.is_none()) {
        lines.push("time is unknown where a run lacks lines of timings.jsonl".to_owned());
    }
    lines
}

/// By how many percent the second mean is above the first.
fn relative(a: Option<Average>, b: Option<Average>) -> Option<String> {
    let (a, b) = (a?.mean, b?.mean);
    let percent = (100.0 * (b / a - 1.0)).round();
    let sign = if percent < 0.0 { '−' } else { '+' };
    (a > 0.0).then(|| format!("{sign}{} %", percent.abs()))
}

fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024.0 {
        return format!("{count:.0} B");
    }
    let steps = UNITS.iter().scan(count, |rest, unit| {
        *rest /= 1024.0;
        Some((*rest, *unit))
    });
    let fitting = steps.clone().find(|(rest, _)| *rest < 1024.0).or_else(|| steps.last());
    fitting.map(|(rest, unit)| format!("{rest:.2} {unit}")).unwrap_or_default()
}

fn aligned(rows: &[impl AsRef<[String]>]) -> String {
    escape::aligned(rows, |_| false).join("\n") + "\n"
}

fn seconds(count: f64) -> String {
    if count < 100.0 { format!("{count:.2} s") } else { format!("{count:.0} s") }
}
