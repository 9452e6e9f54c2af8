//! Points in a plane, by class.

use super::axis::{Axis, Plane, Range};
use super::palette::class_colour;
use super::svg::{Key, MARGIN, Svg, px};
use crate::escape;
use std::f64::consts::TAU;

/// The points of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassPoints {
    pub name: String,
    pub points: Vec<[f64; 2]>,
}

impl ClassPoints {
    /// The centroid of its points.
    pub fn centre(&self) -> [f64; 2] {
        let count = self.points.len().max(1) as f64;
        [0, 1].map(|axis| self.points.iter().map(|point| point[axis]).sum::<f64>() / count)
    }

    pub(super) fn svg(classes: &[Self], title: &str) -> String {
        let mut svg = Svg::new(title, "");
        let plane = Plane { left: MARGIN, top: svg.head + 4.0, width: 528.0, height: 420.0 };
        let range = |axis: usize| {
            let values = classes.iter().flat_map(|class| &class.points).map(|point| point[axis]);
            Range::of(&Axis::new(""), values, true)
        };
        let (x, y) = (range(0), range(1));
        let place = |point: [f64; 2]| [plane.x(&x, point[0]), plane.y(&y, point[1])];
        plane.frame(&mut svg);
        let mut keys = Vec::new();
        let drawn = classes.iter().enumerate().filter(|(_, class)| !class.points.is_empty());
        for (class, ClassPoints { name, points }) in drawn.clone() {
            let colour = class_colour(class);
            // Lines of hardly any length with round ends, in one path: thousands of circles would be ten times as long.
            let dots: String = points
                .iter()
                .map(|&point| place(point))
                .map(|[x, y]| format!("M{x} {y}h.1"))
                .collect();
            svg.group(name, true, "");
            svg.add(format_args!(
                "<title>{}</title><path d=\"{dots}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"4\" \
                 stroke-linecap=\"round\" stroke-opacity=\"0.8\"/></g>\n",
                escape::markup(name)
            ));
            let sample = format!("<circle cx=\"14\" r=\"5\" fill=\"{colour}\"/>");
            keys.push(Key { name: name.clone(), sample, shown: true });
        }
        // Above all points.
        for (number, class) in drawn {
            let (star, colour) = (star(place(class.centre())), class_colour(number));
            svg.add(format_args!(
                "<path data-line=\"{}\" class=\"star\" d=\"{star}\" fill=\"{colour}\" stroke=\"#222222\"/>\n",
                escape::markup(&class.name)
            ));
        }
        svg.finish([560.0, plane.bottom() + MARGIN], plane.top, &keys, "")
    }
}

/// A star with five points around a place.
fn star([x, y]: [f64; 2]) -> String {
    let corners = (0..10).map(|corner| {
        let (angle, radius) =
            (TAU * f64::from(corner) / 10.0, if corner % 2 == 0 { 10.0 } else { 4.0 });
        format!("{} {}", px(x + radius * angle.sin()), px(y - radius * angle.cos()))
    });
    format!("M{}z", corners.collect::<Vec<_>>().join("L"))
}
