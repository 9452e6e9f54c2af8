//! Which client holds which image.
//!
//! There are four schemes, because the compared papers use four. The two Dirichlet schemes differ
//! in what is fixed: [`Scheme::Lda`] draws a mixture of *classes* per client and keeps client sizes
//! equal; [`Scheme::Dirichlet`] draws a mixture of *clients* per class and lets sizes vary. Papers
//! often call either just "Dirichlet", so both exist here under different names.
//!
//! Dirichlet weights are drawn and normalised as logarithms. With a small concentration all the
//! gamma variates can underflow to zero, and dividing by their sum, as most implementations do,
//! gives NaN; with logarithms the largest is always exact.
//!
//! Counts are drawn first, then images are cut from shuffled lists, so the cost is about
//! `clients * classes + samples`, not `clients * samples`.

use crate::error::unusable;
use crate::stream::{ChaCha8Rng, SERVER};
use crate::{Purpose, Result, Stream};
use rand::RngExt;
use rand::distr::Open01;
use rand::seq::SliceRandom;
use rand_distr::{Distribution, Gamma};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BinaryHeap;

/// How unlabelled images are spread over the clients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scheme {
    /// Shuffled and distributed evenly: sizes differ by at most one.
    Iid {}, // with braces, serde rejects unknown keys here too
    /// Latent Dirichlet allocation: every client draws a class mixture from Dir(alpha) and fills its equal
    /// share from it.
    // An exhausted class is removed from the mixture, so the last clients get what remains. If the classes of
    // the data set are not all of the same size, the mixture is weighted by the images left of each class:
    // otherwise the small classes would be used up by the first clients.
    Lda {
        /// Concentration: with 0.1 most images of a client are of one or two classes, 1000 is close to IID.
        alpha: f64,
    },
    /// SemiFL's scheme: every class is divided over the clients in proportions from Dir(alpha), so that their
    /// sizes vary.
    // Clients that already hold their fair share are skipped, and the draw is repeated until the smallest
    // client holds `SMALLEST` samples.
    Dirichlet {
        /// Concentration: the smaller, the more skewed.
        alpha: f64,
    },
    /// Every client holds images of the same number of classes, in sizes as equal as the classes allow.
    Classes {
        /// Classes per client.
        per_client: usize,
    },
}

/// Minimum samples per client under [`Scheme::Dirichlet`], or half the fair share if that is less.
pub const SMALLEST: usize = 10;

/// The images of every client, as sorted indices into the training set: disjoint, and covering the
/// whole pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The image indices of every client.
    pub clients: Vec<Vec<u32>>,
}

impl Partition {
    /// Samples per class, `[client][class]`.
    pub fn histogram(&self, labels: &[u16], classes: usize) -> Vec<Vec<u32>> {
        let count = |client: &Vec<u32>| {
            let mut counts = vec![0; classes];
            for &index in client {
                counts[usize::from(labels[index as usize])] += 1;
            }
            counts
        };
        self.clients.iter().map(count).collect()
    }
}

/// Distributes the pool (indices into `labels`) over the clients.
///
/// [`Scheme::Iid`] ignores the labels, which may be empty.
pub fn partition(
    scheme: Scheme,
    labels: &[u16],
    pool: &[u32],
    classes: usize,
    clients: usize,
    seed: u64,
) -> Result<Partition> {
    check(scheme, pool.len(), classes, clients)?;
    let stream = Stream::new(seed, Purpose::Partition, 0, SERVER);
    let mut clients = match scheme {
        Scheme::Iid {} => iid(pool, clients, stream),
        Scheme::Lda { alpha } => {
            // Of the data set, not of the pool: anchors taken out at random leave a balanced data
            // set's pool a little unbalanced, and its partitions are on record.
            let balanced = is_balanced(labels, classes);
            lda(by_class(labels, pool, classes, stream)?, alpha, balanced, clients, stream)
        }
        Scheme::Dirichlet { alpha } => {
            dirichlet(&by_class(labels, pool, classes, stream)?, alpha, clients, stream)?
        }
        Scheme::Classes { per_client } => {
            some_classes(&by_class(labels, pool, classes, stream)?, per_client, clients, stream)?
        }
    };
    clients.iter_mut().for_each(|client| client.sort_unstable());
    Ok(Partition { clients })
}

fn check(scheme: Scheme, samples: usize, classes: usize, clients: usize) -> Result<()> {
    match scheme {
        _ if clients == 0 => unusable("a partition needs at least one client"),
        _ if clients > samples => unusable(format!(
            "{clients} clients cannot share {samples} samples: every client needs at least one"
        )),
        Scheme::Lda { alpha: a } | Scheme::Dirichlet { alpha: a } if !a.is_finite() || a <= 0.0 => {
            unusable(format!("partition.alpha must be a positive number, got {a}"))
        }
        Scheme::Classes { per_client } if !(1..=classes).contains(&per_client) => unusable(
            format!("partition.per_client must be between 1 and {classes}, got {per_client}"),
        ),
        _ => Ok(()),
    }
}

/// The images of the pool by class, each list shuffled.
fn by_class(labels: &[u16], pool: &[u32], classes: usize, stream: Stream) -> Result<Vec<Vec<u32>>> {
    let mut members = vec![Vec::new(); classes];
    for &index in pool {
        let Some(&label) = labels.get(index as usize) else {
            return unusable(format!("image {index} of the pool has no label"));
        };
        let Some(class) = members.get_mut(usize::from(label)) else {
            let problem =
                format!("image {index} has label {label}, but there are {classes} classes");
            return unusable(problem);
        };
        class.push(index);
    }
    let mut rng = stream.rng();
    members.iter_mut().for_each(|class| class.shuffle(&mut rng));
    Ok(members)
}

/// The size of a part of `total` divided evenly: the first parts are larger by one if necessary.
fn share(total: usize, parts: usize, part: usize) -> usize {
    total / parts + usize::from(part < total % parts)
}

fn iid(pool: &[u32], clients: usize, stream: Stream) -> Vec<Vec<u32>> {
    let mut order = pool.to_vec();
    order.shuffle(&mut stream.rng());
    let mut rest = order.into_iter();
    let size = |client| share(pool.len(), clients, client);
    (0..clients).map(|client| rest.by_ref().take(size(client)).collect()).collect()
}

/// Whether all classes have the same number of images.
fn is_balanced(labels: &[u16], classes: usize) -> bool {
    let mut counts = vec![0usize; classes];
    for &label in labels.iter().filter(|&&label| usize::from(label) < classes) {
        counts[usize::from(label)] += 1;
    }
    counts.windows(2).all(|pair| pair[0] == pair[1])
}

fn lda(
    mut members: Vec<Vec<u32>>,
    alpha: f64,
    balanced: bool,
    clients: usize,
    stream: Stream,
) -> Vec<Vec<u32>> {
    let classes = members.len();
    let samples = members.iter().map(Vec::len).sum();
    let fill = |client: usize| {
        let mut rng = stream.at(client as u64);
        let mut logs = log_gammas(alpha, classes, &mut rng);
        if !balanced {
            logs.iter_mut().zip(&members).for_each(|(log, left)| *log += (left.len() as f64).ln());
        }
        let mixture =
            |members: &[Vec<u32>]| cumulative_softmax(&logs, |class| !members[class].is_empty());
        let mut cumulative = mixture(&members);
        let size = share(samples, clients, client);
        let mut images = Vec::with_capacity(size);
        while images.len() < size {
            let draw = rng.random::<f64>() * cumulative[classes - 1];
            let class = cumulative.partition_point(|&up_to| up_to <= draw);
            // Fails only if the product was rounded up to the total: draw again.
            let Some(image) = members.get_mut(class).and_then(Vec::pop) else { continue };
            images.push(image);
            if members[class].is_empty() {
                cumulative = mixture(&members);
            }
        }
        images
    };
    (0..clients).map(fill).collect()
}

fn dirichlet(
    members: &[Vec<u32>],
    alpha: f64,
    clients: usize,
    stream: Stream,
) -> Result<Vec<Vec<u32>>> {
    let samples: usize = members.iter().map(Vec::len).sum();
    let smallest = SMALLEST.min(samples / clients / 2).max(1);
    // A thousand tries for small problems; for large ones, what fits into a second or two.
    let tries = (30_000_000 / (clients * members.len())).clamp(20, 1000);
    for attempt in 0..tries {
        let mut rng = stream.at(attempt as u64);
        let mut parts: Vec<Vec<u32>> = vec![Vec::new(); clients];
        for images in members {
            // Some client is below its fair share as long as images remain.
            let below = |client: usize| parts[client].len() * clients < samples;
            let cumulative = cumulative_softmax(&log_gammas(alpha, clients, &mut rng), below);
            let scale = images.len() as f64 / cumulative[clients - 1];
            let mut ends: Vec<usize> =
                cumulative.iter().map(|up_to| (up_to * scale) as usize).collect();
            ends[clients - 1] = images.len();
            let mut start = 0;
            for (part, end) in parts.iter_mut().zip(ends) {
                let end = end.min(images.len());
                part.extend_from_slice(&images[start..end]);
                start = end;
            }
        }
        if parts.iter().all(|part| part.len() >= smallest) {
            return Ok(parts);
        }
    }
    unusable(format!(
        "cannot give each of {clients} clients at least {smallest} of {samples} samples: \
         {tries} draws from Dir({alpha}) failed; raise alpha or use fewer clients"
    ))
}

/// `count` logarithms of Gamma(alpha, 1) variates, by log G(a) = log G(a + 1) + log(U) / a.
fn log_gammas(alpha: f64, count: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let gamma = Gamma::new(alpha + 1.0, 1.0).expect("alpha was checked to be positive and finite");
    let draw = |_| gamma.sample(rng).ln() + rng.sample::<f64, _>(Open01).ln() / alpha;
    (0..count).map(draw).collect()
}

/// Running sums of exp(logs) over the items that are `open`, relative to the largest of them;
/// others add nothing. Uniform over the open items if all logarithms are minus infinity.
fn cumulative_softmax(logs: &[f64], open: impl Fn(usize) -> bool) -> Vec<f64> {
    let of_open = (0..logs.len()).filter(|&item| open(item)).map(|item| logs[item]);
    let largest = of_open.fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    let mut add = |(item, &log): (usize, &f64)| {
        if open(item) {
            sum += if largest.is_finite() { (log - largest).exp() } else { 1.0 };
        }
        sum
    };
    logs.iter().enumerate().map(&mut add).collect()
}

/// Cuts every class into shards and gives each client shards of `per_client` different classes.
fn some_classes(
    members: &[Vec<u32>],
    per_client: usize,
    clients: usize,
    stream: Stream,
) -> Result<Vec<Vec<u32>>> {
    let shards = shard_counts(members, per_client, clients)?;
    let mut left = shards.clone();
    let mut next = vec![0; members.len()]; // the start of each class's next shard
    let mut assign = |client: usize| {
        // Invariant: no class has more shards left than there are clients left, and there are
        // exactly `per_client` shards per client left. A class with as many shards as clients left
        // must be chosen now; the others are drawn in proportion to their remaining shards (by
        // exponential clocks: the earliest are chosen). So the last client gets different classes
        // too.
        let clients_left = clients - client;
        let mut rng = stream.at(client as u64);
        let mut clocks: Vec<(f64, usize)> = (0..members.len())
            .filter(|&class| left[class] > 0)
            .map(|class| {
                let ring = -rng.sample::<f64, _>(Open01).ln() / left[class] as f64;
                (if left[class] == clients_left { -1.0 } else { ring }, class)
            })
            .collect();
        clocks
            .select_nth_unstable_by(per_client - 1, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut images = Vec::new();
        for &(_, class) in &clocks[..per_client] {
            let shard = shards[class] - left[class];
            let end = next[class] + share(members[class].len(), shards[class], shard);
            images.extend_from_slice(&members[class][next[class]..end]);
            next[class] = end;
            left[class] -= 1;
        }
        images
    };
    Ok((0..clients).map(&mut assign).collect())
}

/// Shards per class: one for each non-empty class, then one more for the class with the largest
/// shards, repeatedly, up to one per client and one per image.
fn shard_counts(members: &[Vec<u32>], per_client: usize, clients: usize) -> Result<Vec<usize>> {
    let most = |class: usize| members[class].len().min(clients);
    let wanted = clients * per_client;
    let filled = members.iter().filter(|images| !images.is_empty()).count();
    let possible: usize = (0..members.len()).map(most).sum();
    if wanted < filled {
        return unusable(format!(
            "{clients} clients with {per_client} classes each hold at most {wanted} of the \
             {filled} classes: use more clients or more classes per client"
        ));
    }
    if wanted > possible {
        return unusable(format!(
            "too few images to give each of {clients} clients {per_client} different classes: use \
             fewer clients or fewer classes per client"
        ));
    }
    let mut shards = vec![0; members.len()];
    // Sizes times 2^32, to compare fractions as integers; ties go to the later class.
    let size = |class: usize, shards: usize| ((members[class].len() as u64) << 32) / shards as u64;
    let mut heap: BinaryHeap<(u64, usize)> = (0..members.len())
        .filter(|&class| most(class) > 0)
        .map(|class| (u64::MAX, class))
        .collect();
    for _ in 0..wanted {
        let Some((_, class)) = heap.pop() else { break }; // cannot be empty: wanted <= possible
        shards[class] += 1;
        if shards[class] < most(class) {
            heap.push((size(class, shards[class]), class));
        }
    }
    Ok(shards)
}
