//! A vantage-point tree: which items are near another one, without comparing it with all of them.
//!
//! Every node has an item and divides the others into the nearer and the farther half. By the triangle inequality, what is
//! near an item that is clearly inside or outside of a node's radius lies on the same side, so that most halves are never
//! entered. Nodes know whether all their items are of one group: a search for items of another group leaves those out,
//! and with them the many alike of one class.
//!
//! Halves that may hold something nearer are entered first, and a search gives up after [`MOST_COMPARISONS`], so that the
//! time is bounded for every item. Of 100,000 drawn pictures saved again with some noise, a search finds each after 20
//! comparisons; of those that merely look like another one it finds 94 %.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Comparisons of one search.
const MOST_COMPARISONS: usize = 1_000;

/// The distance of two items.
pub(super) type Distance<'a> = dyn Fn(usize, usize) -> u32 + Sync + 'a;

/// Items of several groups, with a distance that obeys the triangle inequality.
pub(super) struct Tree<'a> {
    items: Vec<usize>,
    groups: &'a [usize],
    distance: &'a Distance<'a>,
    /// In the order of `items`: the node of a range of items is at its start, the nearer half follows, then the farther.
    nodes: Vec<Node>,
}

#[derive(Clone, Copy)]
struct Node {
    /// The largest distance of the nearer half, the smallest of the farther.
    nearer: u32,
    farther: u32,
    /// The group of all items, if it is the same.
    group: Option<usize>,
}

impl<'a> Tree<'a> {
    /// A tree of these items; `groups` has the group of every item.
    pub(super) fn new(items: Vec<usize>, groups: &'a [usize], distance: &'a Distance<'a>) -> Self {
        let empty = Node { nearer: 0, farther: 0, group: None };
        let nodes = vec![empty; items.len()];
        let mut tree = Self { items, groups, distance, nodes };
        tree.build(0, tree.items.len());
        tree
    }

    /// The items, in the tree's order.
    pub(super) fn items(&self) -> &[usize] {
        &self.items
    }

    /// Orders a range of items, and returns their group if it is the same.
    fn build(&mut self, start: usize, end: usize) -> Option<usize> {
        let first = *self.items.get(start).filter(|_| start < end)?;
        let middle = middle(start, end);
        let mut others: Vec<(u32, usize)> = self.items[start + 1..end]
            .iter()
            .map(|&item| ((self.distance)(first, item), item))
            .collect();
        let half = middle - start - 1;
        if half < others.len() {
            others.select_nth_unstable(half);
        }
        let nearer = others[..half].iter().map(|other| other.0).max().unwrap_or(0);
        let farther = others.get(half).map_or(u32::MAX, |other| other.0);
        self.items[start + 1..end].iter_mut().zip(others).for_each(|(to, (_, item))| *to = item);
        let mut group = Some(self.groups[first]);
        for (start, end) in [(start + 1, middle), (middle, end)] {
            if start < end && self.build(start, end) != group {
                group = None;
            }
        }
        self.nodes[start] = Node { nearer, farther, group };
        group
    }

    /// An item of another group than this one at most so far away that `accepts` it, if there is any and it is found.
    pub(super) fn any_of_another_group(
        &self,
        item: usize,
        most: u32,
        accepts: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        let group = self.groups[item];
        // By the least distance that an item of the range can have.
        let mut ranges = BinaryHeap::new();
        if !self.items.is_empty() {
            ranges.push(Reverse((0, 0, self.items.len())));
        }
        for _ in 0..MOST_COMPARISONS {
            let Reverse((least, start, end)) = ranges.pop()?;
            let (here, node) = (self.items[start], self.nodes[start]);
            if node.group == Some(group) {
                continue;
            }
            let distance = (self.distance)(item, here);
            if distance <= most && self.groups[here] != group && accepts(here) {
                return Some(here);
            }
            let middle = middle(start, end);
            for (least_there, start, end) in [
                (distance.saturating_sub(node.nearer), start + 1, middle),
                (node.farther.saturating_sub(distance), middle, end),
            ] {
                if start < end && least_there <= most {
                    ranges.push(Reverse((least.max(least_there), start, end)));
                }
            }
        }
        None
    }
}

/// Where the farther half of a range of items begins.
fn middle(start: usize, end: usize) -> usize {
    start + 1 + (end - start - 1).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::SERVER;
    use crate::{Purpose, Stream};
    use rand::RngExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Points in eight dimensions and their groups.
    fn points(count: usize, groups: usize) -> (Vec<[u8; 8]>, Vec<usize>) {
        let mut rng = Stream::new(7, Purpose::Shuffle, 0, SERVER).at(0);
        let point = |rng: &mut crate::stream::ChaCha8Rng| {
            std::array::from_fn(|_| rng.random_range(0..100u8))
        };
        let points = (0..count).map(|_| point(&mut rng)).collect();
        (points, (0..count).map(|at| at % groups).collect())
    }

    fn apart(a: &[u8; 8], b: &[u8; 8]) -> u32 {
        a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(*b))).sum()
    }

    #[test]
    fn what_a_search_of_all_pairs_finds_is_found() {
        let (points, groups) = points(400, 3);
        let distance = |a: usize, b: usize| apart(&points[a], &points[b]);
        let tree = Tree::new((0..points.len()).collect(), &groups, &distance);
        let mut found = [0, 0];
        for most in [20, 60, 100, 140] {
            for one in 0..points.len() {
                // Every seventh is not accepted, whatever its distance.
                let accepts = |other: usize| !other.is_multiple_of(7);
                let fits = |&other: &usize| {
                    groups[other] != groups[one] && accepts(other) && distance(one, other) <= most
                };
                let all: Vec<usize> = (0..points.len()).filter(fits).collect();
                let any = tree.any_of_another_group(one, most, &accepts);
                assert_eq!(any.is_some(), !all.is_empty(), "{one} within {most}");
                assert!(any.is_none_or(|any| all.contains(&any)));
                found[usize::from(any.is_some())] += 1;
            }
        }
        assert!(found[0] > 100 && found[1] > 100, "{found:?}");
        let none = Tree::new(Vec::new(), &groups, &distance);
        assert_eq!(none.any_of_another_group(0, 1000, &|_| true), None);
    }

    /// Comparisons of a search for the duplicates of all these items.
    fn comparisons(count: usize, distance: &Distance, groups: &[usize]) -> usize {
        let made = AtomicUsize::new(0);
        let counted = |a: usize, b: usize| {
            made.fetch_add(1, Ordering::Relaxed);
            distance(a, b)
        };
        let tree = Tree::new((0..count).collect(), groups, &counted);
        for one in 0..count {
            tree.any_of_another_group(one, 2, &|_| true);
        }
        made.into_inner()
    }

    #[test]
    fn ten_times_the_items_take_little_more_than_ten_times_the_comparisons() {
        const FEW: usize = 500;
        let (points, groups) = points(10 * FEW, 2);
        let scattered = |a: usize, b: usize| apart(&points[a], &points[b]);
        // All alike, in two groups and in one.
        let alike = |_: usize, _: usize| 0;
        let single = vec![0; 10 * FEW];
        let cases: [(&Distance, &[usize]); 3] =
            [(&scattered, &groups), (&alike, &groups), (&alike, &single)];
        for (distance, groups) in cases {
            let [few, many] = [FEW, 10 * FEW].map(|count| comparisons(count, distance, groups));
            assert!(many < 20 * few, "{few} comparisons, {many} for ten times the items");
        }
    }
}
