//! Runs in the order in which a report shows them: sections of one task each, and in them experiments,
//! averaged over their seeds.

use crate::heading::Heading;
use crate::history::{Histories, History, one_per_seed};
use crate::published::{Published, published};
use crate::setup::{differing, group};
use crate::table::Average;
use fedanchor_record::{ClientLabels, MethodProperties, Summary};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// A section with more experiments than this is divided by the sweeps that its runs come from.
const MOST_EXPERIMENTS: usize = 12;

/// Everything a report shows.
#[derive(Debug)]
pub struct Study {
    /// One per task, or per sweep of a task with many experiments.
    pub sections: Vec<Section>,
    /// Runs and files that are missing or cannot be read, and runs whose rounds did not make the model better.
    pub problems: Vec<String>,
}

/// Experiments that can be compared: the same data, model, number of anchors and partition.
#[derive(Debug)]
pub struct Section {
    /// Short name for files and links, unique in the study.
    pub id: String,
    /// What they have in common.
    pub title: String,
    /// Data set and number of anchors, for a figure over all sections.
    pub short: String,
    /// The experiments, in the order of the paper's tables.
    pub experiments: Vec<Experiment>,
    /// The settings in which they differ: the key, and each experiment's value where it has one.
    pub differences: Vec<(String, Vec<Option<String>>)>,
}

/// An experiment: runs that differ in nothing but their seed.
#[derive(Debug)]
pub struct Experiment {
    /// A name that is unique in its section.
    pub name: String,
    /// Its runs, sorted by seed, at least one.
    pub runs: Vec<History>,
    pub published: Option<Published>,
    /// Which colour and dash pattern it has in figures.
    pub style: usize,
}

impl Experiment {
    /// The settings that identify it to a reader.
    pub fn heading(&self) -> &Heading {
        &self.runs[0].setup.heading
    }

    /// Whether its clients train on pseudo-labels.
    pub fn has_labels(&self) -> bool {
        let recorded = self.method().map(|method| method.labels == ClientLabels::Pseudo);
        recorded.unwrap_or_else(|| self.heading().had_labels())
    }

    /// Whether its clients train on some of their samples only, by a threshold.
    pub fn selects(&self) -> bool {
        self.method().map_or_else(|| self.heading().had_labels(), |method| method.selects)
    }

    /// Properties of its method; `None` in records of earlier versions.
    fn method(&self) -> Option<&MethodProperties> {
        self.runs.iter().find_map(|run| run.rounds.first()?.method.as_ref())
    }

    /// A number averaged over the runs that have it.
    pub fn average(&self, of: impl Fn(&History) -> Option<f64>) -> Option<Average> {
        Average::of_all(self.runs.iter().map(of).filter(Option::is_some))
    }

    /// Whether every run has completed all its rounds.
    pub fn is_finished(&self) -> bool {
        self.runs.iter().all(|run| run.is_finished)
    }
}

impl Study {
    /// Sorts runs into sections and experiments.
    pub fn new(histories: Histories) -> Self {
        let mut problems: Vec<String> =
            histories.damaged.iter().map(|run| format!("not shown: {run}")).collect();
        let mut runs = histories.runs;
        for run in &runs {
            let path = run.setup.path.display();
            let warning = run.summary.as_ref().and_then(Summary::warning);
            let about = run.problems.iter().chain(&warning);
            problems.extend(about.map(|problem| format!("{path}: {problem}")));
        }
        runs.sort_by(|a, b| {
            let heading = a.setup.heading.order(&b.setup.heading);
            heading.then_with(|| a.setup.path.cmp(&b.setup.path))
        });
        let mut tasks: Vec<Vec<History>> = Vec::new();
        for run in runs {
            match tasks.last_mut() {
                Some(task) if task[0].setup.heading.same_task(&run.setup.heading) => task.push(run),
                _ => tasks.push(vec![run]),
            }
        }
        let mut sections: Vec<Section> = Vec::new();
        for task in tasks {
            let many = group(task.iter().map(|run| &run.setup)).len() > MOST_EXPERIMENTS;
            let sweeps = if many { by_sweep(task) } else { BTreeMap::from([(None, task)]) };
            for (sweep, runs) in sweeps {
                let mut section = Section::new(runs, sweep, &mut problems);
                let taken = |id: &str| sections.iter().any(|other| other.id == id);
                if taken(&section.id) {
                    let numbered = (2..).map(|number| format!("{}-{number}", section.id));
                    section.id = numbered.into_iter().find(|id| !taken(id)).unwrap_or_default();
                }
                sections.push(section);
            }
        }
        Self { sections, problems }
    }
}

/// Divides runs by the folder of their sweep, `SWEEP/CELL/seedN`, in the order of its name.
fn by_sweep(runs: Vec<History>) -> BTreeMap<Option<String>, Vec<History>> {
    let mut sweeps: BTreeMap<Option<String>, Vec<History>> = BTreeMap::new();
    for run in runs {
        let sweep =
            is_seed(&run.setup.path).then(|| name_of(run.setup.path.parent()?.parent()?)).flatten();
        sweeps.entry(sweep).or_default().push(run);
    }
    sweeps
}

fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// Whether a folder is one seed of a cell.
fn is_seed(path: &Path) -> bool {
    name_of(path).is_some_and(|name| {
        let digits = name.strip_prefix("seed").unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The name that a person gave to an experiment: its cell in a sweep, or its folder without the seed.
fn given_name(path: &Path) -> String {
    let folder = if is_seed(path) { path.parent().unwrap_or(path) } else { path };
    let name = name_of(folder).unwrap_or_else(|| folder.display().to_string());
    match name.rsplit_once("-seed") {
        Some((start, seed)) if seed.bytes().all(|byte| byte.is_ascii_digit()) => start.to_owned(),
        _ => name,
    }
}

impl Section {
    fn new(runs: Vec<History>, sweep: Option<String>, problems: &mut Vec<String>) -> Self {
        let heading = runs[0].setup.heading.clone();
        let groups = group(runs.iter().map(|run| &run.setup));
        let keys = differing(&groups.iter().collect::<Vec<_>>()).into_iter();
        let differences = keys.map(|key| {
            let values = groups.iter().map(|group| group.settings.get(key));
            (key.to_owned(), values.map(|value| value.map(|v| (*v).to_owned())).collect())
        });
        let differences = differences.collect();
        let members: Vec<Vec<usize>> = groups.into_iter().map(|group| group.members).collect();
        let mut runs: Vec<Option<History>> = runs.into_iter().map(Some).collect();
        let mut experiments: Vec<Experiment> = members
            .into_iter()
            .map(|members| {
                let runs = members.into_iter().filter_map(|place| runs[place].take()).collect();
                Experiment::new(runs, problems)
            })
            .collect();
        name_experiments(&mut experiments);
        style_experiments(&mut experiments);
        let Heading { data, model, anchors, partition, .. } = heading;
        let mut title = format!("{data}, {anchors} anchors, {partition}, {model}");
        if let Some(sweep) = sweep {
            title = format!("{sweep}: {title}");
        }
        Self {
            id: slug(&title),
            short: format!("{data}, {anchors} anchors, {partition}"),
            title,
            experiments,
            differences,
        }
    }
}

impl Experiment {
    fn new(runs: Vec<History>, problems: &mut Vec<String>) -> Self {
        let runs = one_per_seed(runs, |run, kept| {
            let (run, kept) = (run.display(), kept.display());
            problems.push(format!(
                "{run} is left out: {kept} is a run of the same experiment and seed"
            ));
        });
        let published = published(&runs[0].setup).first().copied();
        Self { name: String::new(), runs, published, style: 0 }
    }
}

/// Names experiments by their method. Where that is not enough, the name that a person gave tells them
/// apart, and where even that is the same, a number.
fn name_experiments(experiments: &mut [Experiment]) {
    let methods: Vec<String> = experiments.iter().map(|one| one.heading().method.clone()).collect();
    let mut taken: HashMap<String, usize> = HashMap::new();
    for (experiment, method) in experiments.iter_mut().zip(&methods) {
        let name = match methods.iter().filter(|other| *other == method).count() {
            1 => method.clone(),
            _ => given_name(&experiment.runs[0].setup.path),
        };
        let count = taken.entry(name.clone()).or_default();
        *count += 1;
        experiment.name = if *count == 1 { name } else { format!("{name} ({count})") };
    }
}

/// Gives experiments of different methods the styles of their methods, and others one style each.
fn style_experiments(experiments: &mut [Experiment]) {
    let mut styles: Vec<usize> = experiments.iter().map(|one| one.heading().style()).collect();
    if BTreeSet::from_iter(&styles).len() < styles.len() {
        styles = (0..experiments.len()).collect();
    }
    for (experiment, style) in experiments.iter_mut().zip(styles) {
        experiment.style = style;
    }
}

/// Text as the name of a file and of a place on a page.
pub(crate) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for letter in text.chars() {
        match letter {
            'a'..='z' | '0'..='9' | '.' => slug.push(letter),
            'A'..='Z' => slug.push(letter.to_ascii_lowercase()),
            _ if slug.ends_with('-') || slug.is_empty() => {}
            _ => slug.push('-'),
        }
    }
    let slug = slug.trim_matches(['-', '.']);
    if slug.is_empty() { "unnamed".to_owned() } else { slug.chars().take(80).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_cells_and_folders() {
        let name = |path: &str| given_name(Path::new(path));
        assert_eq!(name("runs/table/cifar10-iid/seed3"), "cifar10-iid");
        assert_eq!(name("runs/mine-fedanchor-seed0"), "mine-fedanchor");
        assert_eq!(name("runs/first"), "first");
        assert_eq!(name("runs/seeds"), "seeds");
    }

    #[test]
    fn slugs_are_safe_names() {
        assert_eq!(slug("CIFAR-10, 500 anchors, LDA 0.1"), "cifar-10-500-anchors-lda-0.1");
        assert_eq!(slug("../..</script>"), "script");
        assert_eq!(slug("Ä"), "unnamed");
    }
}
