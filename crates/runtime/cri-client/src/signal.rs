//! Stop signals as CRI numbers them: the names of the API in their order, counted from one; zero is "not said".

use pulselet_runtime::Signal;

pub(crate) fn to_wire(signal: Option<Signal>) -> i32 {
    signal
        .and_then(|signal| Signal::all().position(|other| other == signal))
        .and_then(|index| i32::try_from(index + 1).ok())
        .unwrap_or_default()
}

/// None for zero, and for what a later version may add.
pub(crate) fn from_wire(number: i32) -> Option<Signal> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    Signal::all().nth(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::v1;

    #[test]
    fn every_signal_has_the_number_of_its_name() {
        for signal in Signal::all() {
            let number = to_wire(Some(signal));
            assert_eq!(from_wire(number), Some(signal));
            let name = v1::Signal::try_from(number)
                .expect("a number of the enum")
                .as_str_name();
            assert_eq!(name.replace("PLUS", "+").replace("MINUS", "-"), signal.name());
        }
        assert_eq!(to_wire(Some(Signal::TERM)), 23);
        assert_eq!(to_wire("SIGRTMAX".parse().ok()), 65);
    }

    #[test]
    fn nothing_is_zero_and_unknown_numbers_are_nothing() {
        assert_eq!(to_wire(None), 0);
        for number in [0, -1, 66, i32::MAX, i32::MIN] {
            assert_eq!(from_wire(number), None);
        }
    }
}
