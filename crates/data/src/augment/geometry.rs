//! Operations that move pixels.
//!
//! Pillow computes the source position of each pixel of the result: in 16.16 fixed point for the
//! nearest pixel, in double precision for the bilinear mean. This code reproduces both exactly,
//! because a coordinate rounded differently moves a whole pixel. Outside the image is black.
//!
//! Rotation and both shears use one affine map; translations by whole pixels, for which the two
//! filters agree, copy rows.

/// How a position between pixels is interpolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub(super) enum Filter {
    /// The pixel that contains the position.
    Nearest,
    /// The mean of the four surrounding pixels, weighted by distance.
    Bilinear,
}

/// `[a, b, c, d, e, f]`: the source of (x, y) is (a x + b y + c, d x + e y + f).
pub(super) type Matrix = [f64; 6];

/// A counter-clockwise rotation about the centre of the image.
pub(super) fn rotation(degrees: f64, side: usize) -> Matrix {
    let (sin, cos) = (-degrees.to_radians()).sin_cos();
    let centre = side as f64 / 2.0;
    let c = cos * -centre + sin * -centre + centre;
    let f = -sin * -centre + cos * -centre + centre;
    [cos, sin, c, -sin, cos, f]
}

pub(super) fn affine<const C: usize>(
    matrix: Matrix,
    filter: Filter,
    side: usize,
    src: &[[u8; C]],
    out: &mut [[u8; C]],
) {
    match filter {
        Filter::Nearest => nearest(matrix, side, src, out),
        Filter::Bilinear => bilinear(matrix, side, src, out),
    }
}

fn nearest<const C: usize>(matrix: Matrix, side: usize, src: &[[u8; C]], out: &mut [[u8; C]]) {
    let fixed = |v: f64| i64::from((v * 65536.0 + 0.5).floor() as i32);
    let [a, b, c, d, e, f] = matrix;
    // The first pixel of a row, then one step per pixel: exact in fixed point.
    let (mut row_x, mut row_y) = (fixed(c + a * 0.5 + b * 0.5), fixed(f + d * 0.5 + e * 0.5));
    let [a, b, d, e] = [a, b, d, e].map(fixed);
    for row in out.chunks_exact_mut(side) {
        let (mut x, mut y) = (row_x, row_y);
        for pixel in row {
            // Negative coordinates wrap to large ones, which are outside.
            let (column, line) = ((x >> 16) as usize, (y >> 16) as usize);
            *pixel = if column < side && line < side { src[line * side + column] } else { [0; C] };
            x += a;
            y += d;
        }
        row_x += b;
        row_y += e;
    }
}

fn bilinear<const C: usize>(matrix: Matrix, side: usize, src: &[[u8; C]], out: &mut [[u8; C]]) {
    let [a, b, c, d, e, f] = matrix;
    let inside = 0.0..side as f64;
    let positions =
        (0..side).flat_map(|y| (0..side).map(move |x| (x as f64 + 0.5, y as f64 + 0.5)));
    for (pixel, (x, y)) in out.iter_mut().zip(positions) {
        let (x, y) = (a * x + b * y + c, d * x + e * y + f);
        if !inside.contains(&x) || !inside.contains(&y) {
            *pixel = [0; C];
            continue;
        }
        let (left, right, dx) = neighbours(x - 0.5, side);
        let (above, below, dy) = neighbours(y - 0.5, side);
        let corners = [(left, above), (right, above), (left, below), (right, below)]
            .map(|(x, y)| src[y * side + x]);
        *pixel = std::array::from_fn(|channel| {
            let [a, b, c, d] = corners.map(|corner| f64::from(corner[channel]));
            mix(mix(a, b, dx), mix(c, d, dx), dy) as u8
        });
    }
}

/// The pixels before and after a position in [-0.5, side - 0.5), with edges repeated, and the
/// position between them from 0 to 1.
fn neighbours(position: f64, side: usize) -> (usize, usize, f64) {
    if position < 0.0 {
        return (0, 0, position + 1.0);
    }
    let before = position as usize;
    (before, (before + 1).min(side - 1), position - before as f64)
}

fn mix(from: f64, to: f64, share: f64) -> f64 {
    from + (to - from) * share
}

/// The source of (x, y) is (x + dx, y + dy).
pub(super) fn translate<const C: usize>(
    dx: i32,
    dy: i32,
    side: usize,
    src: &[[u8; C]],
    out: &mut [[u8; C]],
) {
    // Along one axis: the start of the image in the result, and its visible part.
    let overlap = |shift: i32| {
        let distance = (shift.unsigned_abs() as usize).min(side);
        if shift < 0 { (distance, 0..side - distance) } else { (0, distance..side) }
    };
    let ((x, columns), (y, lines)) = (overlap(dx), overlap(dy));
    out.fill([0; C]);
    for (row, line) in out.chunks_exact_mut(side).skip(y).zip(lines) {
        row[x..x + columns.len()].copy_from_slice(&src[line * side..][columns.clone()]);
    }
}

/// Paints the box from (left, top) up to but excluding (right, bottom) gray, clipped to the image.
pub(super) fn cutout<const C: usize>(
    [left, top, right, bottom]: [usize; 4],
    side: usize,
    pixels: &mut [[u8; C]],
) {
    let (right, bottom) = (right.min(side), bottom.min(side));
    if left < right && top < bottom {
        for row in pixels[top * side..bottom * side].chunks_exact_mut(side) {
            row[left..right].fill([127; C]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: [[u8; 1]; 9] = [[1], [2], [3], [4], [5], [6], [7], [8], [9]];

    #[test]
    fn translations_match_hand_computed_values() {
        let shifted = |dx, dy| {
            let mut out = [[99]; 9];
            translate(dx, dy, 3, &IMAGE, &mut out);
            out.map(|[v]| v)
        };
        assert_eq!(shifted(1, 0), [2, 3, 0, 5, 6, 0, 8, 9, 0]);
        assert_eq!(shifted(-2, 1), [0, 0, 4, 0, 0, 7, 0, 0, 0]);
        assert_eq!(shifted(0, -1), [0, 0, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(shifted(3, 0), [0; 9]);
        assert_eq!(shifted(i32::MIN, i32::MAX), [0; 9]);
    }

    #[test]
    fn a_quarter_turn_is_counter_clockwise() {
        let mut out = [[0]; 9];
        affine(rotation(90.0, 3), Filter::Nearest, 3, &IMAGE, &mut out);
        assert_eq!(out.map(|[v]| v), [3, 6, 9, 2, 5, 8, 1, 4, 7]);
    }

    #[test]
    fn bilinear_shift_by_half_a_pixel() {
        // Half a pixel to the right of each pixel of the top row 0 10 20; outside is black.
        let image = [[0], [10], [20], [0], [0], [0], [0], [0], [0]];
        let mut out = [[99]; 9];
        affine([1.0, 0.0, 0.5, 0.0, 1.0, 0.0], Filter::Bilinear, 3, &image, &mut out);
        assert_eq!(out.map(|[v]| v), [5, 15, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn extreme_matrices_give_black_or_pixels() {
        for filter in [Filter::Nearest, Filter::Bilinear] {
            for slope in [1e300, -1e300, f64::INFINITY, f64::NAN] {
                let mut out = [[99]; 9];
                affine([1.0, slope, 0.0, 0.0, 1.0, 0.0], filter, 3, &IMAGE, &mut out);
                assert!(out.iter().all(|[v]| *v < 10));
            }
        }
    }

    #[test]
    fn a_cutout_is_clipped() {
        let mut image = IMAGE;
        cutout([1, 2, 9, 9], 3, &mut image);
        assert_eq!(image.map(|[v]| v), [1, 2, 3, 4, 5, 6, 7, 127, 127]);
        cutout([5, 5, 9, 9], 3, &mut image);
        cutout([2, 2, 1, 1], 3, &mut image);
        assert_eq!(image.map(|[v]| v), [1, 2, 3, 4, 5, 6, 7, 127, 127]);
    }
}
