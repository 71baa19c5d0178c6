//! What the benchmark `floors` makes of its measurements.

#[path = "../../benches/floors/figures.rs"]
mod figures;

use figures::{Point, Series, markdown, percentile, svg};

const GOOD: Point = Point {
    containers: 10,
    agent_us_per_probe: 60.0,
    machine_us_per_probe: 200.0,
    busy: 0.1,
    late_p50: 0.001,
    late_p99: 0.005,
    made: 1.0,
    kept: 1.0,
};

fn series(points: &[Point]) -> Series {
    Series {
        name: "http, 200 ms",
        points: points.to_vec(),
        unready: None,
    }
}

#[test]
fn a_floor_is_where_lateness_or_cpu_breaks() {
    let twice = Point {
        containers: 20,
        ..GOOD
    };
    for broken in [
        Point {
            late_p99: 0.2,
            ..GOOD
        },
        Point { busy: 0.9, ..GOOD },
        Point { kept: 0.9, ..GOOD },
        Point { made: 0.5, ..GOOD },
    ] {
        let broken = Point {
            containers: 40,
            ..broken
        };
        assert!(!broken.holds());
        // What holds again behind the first that does not is luck.
        let lucky = Point {
            containers: 80,
            ..GOOD
        };
        assert_eq!(series(&[GOOD, twice, broken, lucky]).safe(), 20);
    }
    assert_eq!(series(&[]).safe(), 0);
    let table = markdown(&[series(&[GOOD, twice])], 2);
    assert!(
        table.contains("| http, 200 ms | 10 | 60 us | 200 us | 10 % | 1.0 ms | 5.0 ms | 100 % | 100 % |"),
        "{table}"
    );
    assert!(table.ends_with("| http, 200 ms | 10 |\n"), "per core: {table}");
}

#[test]
fn percentiles_lie_between_the_bounds_of_their_bucket() {
    let buckets = [
        (0.001, 50.0),
        (0.002, 90.0),
        (0.004, 100.0),
        (f64::INFINITY, 100.0),
    ];
    let is = |share: f64, expected: f64| (percentile(&buckets, share) - expected).abs() < 1e-9;
    assert!(is(0.5, 0.001) && is(0.7, 0.0015) && is(0.99, 0.0038));
    assert!(percentile(&[], 0.5).abs() < 1e-9);
}

#[test]
fn curves_stand_alone() {
    let curves = [("http".to_owned(), vec![(10.0, 1.0), (20.0, 3.0)])];
    let picture = svg("Lateness", "ms", &curves);
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("<circle").count(), 2);
    assert!(picture.contains(">http</text>") && !picture.contains("NaN"));
}
