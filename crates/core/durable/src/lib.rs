//! Files that outlive a power cut and a full disk.
//!
//! - [`replace`]: a file that is the old one or the new one, whenever the power goes;
//! - [`Reserve`]: room on the disk that is kept for our own writes, and given up when the disk is full;
//! - [`disk_usage`] and [`remove_tree`]: how much others have taken, and getting rid of it.
//!
//! What is in the files is left to their owners.

mod replace;
mod reserve;
mod tree;
mod usage;

pub use replace::{UNFINISHED, replace, sync_directory};
pub use reserve::Reserve;
pub use tree::remove_tree;
pub use usage::{DiskUsage, disk_usage, measure};
