//! Takes as many ticks as its argument says, for an instruction counter to watch. See `scripts/bench instructions`.

mod node;

use node::Node;

/// Enough containers for the heap of deadlines to have some depth.
const CONTAINERS: u64 = 1_000;

fn main() {
    // Cargo adds flags of its own; the count is the argument that is a number.
    let count = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(CONTAINERS);
    let mut node = Node::running(CONTAINERS);
    println!("{} ticks", node.take_ticks(count));
}
