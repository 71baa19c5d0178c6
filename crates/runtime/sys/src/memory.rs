//! Memory that is free and that the allocator keeps for itself.

/// Threads share this many of the allocator's pools. Each keeps what was ever allocated in it at one time, so a
/// process with many threads and short bursts of work grows by a burst per pool.
const POOLS: i32 = 2;

/// Lets all threads share a few pools. To be called before threads are made.
pub fn share_memory_pools() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes a number that the allocator reads under its own lock, and takes no pointer.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, POOLS);
    }
}

/// Gives the kernel back whole pages that are free. It takes milliseconds, and others who allocate may wait for it.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it looks at the allocator's own lists, under its own locks, and takes no pointer.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Bytes of this process that are in memory and belong to no file.
    fn anonymous() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("reads");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
        number.expect("the kernel says so") * 1024
    }

    #[test]
    fn what_is_free_goes_back_although_something_behind_it_is_not() {
        const BLOCKS: usize = 40_000;
        let before = anonymous();
        let mut blocks: Vec<Option<Box<[u8; 1024]>>> =
            (0..BLOCKS).map(|_| Some(Box::new([1; 1024]))).collect();
        // The last block keeps the allocator from giving back what is before it by itself.
        blocks.iter_mut().take(BLOCKS - 1).for_each(|block| *block = None);
        let kept = anonymous() - before;
        release_free_memory();
        let left = anonymous().saturating_sub(before);
        assert!(blocks[BLOCKS - 1].is_some());
        assert!(left * 4 < kept, "{left} of {kept} bytes are kept");
    }
}
