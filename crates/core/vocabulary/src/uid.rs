/// A uid (version 4) as objects, tokens and requests have it, from random bits.
///
/// ```
/// assert_eq!(pulselet_vocabulary::uid(0), "00000000-0000-4000-8000-000000000000");
/// ```
pub fn uid(random: u128) -> String {
    let bits = (random & !(0xf << 76)) | (0x4 << 76);
    let bits = (bits & !(0x3 << 62)) | (0x2 << 62);
    let text = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &text[..8],
        &text[8..12],
        &text[12..16],
        &text[16..20],
        &text[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_keeps_all_bits_but_version_and_variant() {
        assert_eq!(uid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(
            uid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
            "01234567-89ab-4def-8123-456789abcdef"
        );
    }
}
