//! The chunked transfer coding, decoded from whatever pieces it arrives in.

use super::response::take;

/// Bytes of one chunk's size line, and of all trailers together: nothing a health page needs.
const MAX_LINE_BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct Chunked {
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidChunk;

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// In a size line; `digits` of it were hex digits, `rest` bytes came after them.
    Size {
        value: u64,
        digits: usize,
        rest: usize,
    },
    Data(u64),
    /// In the line break after a chunk's data.
    DataEnd,
    /// In the trailers: `line` bytes of the current one, `total` of all.
    Trailers {
        line: usize,
        total: usize,
    },
    Over,
}

const SIZE_LINE: State = State::Size {
    value: 0,
    digits: 0,
    rest: 0,
};

impl Chunked {
    pub(super) fn new() -> Self {
        Self { state: SIZE_LINE }
    }

    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes bytes off the front until there are some that belong to the body, and returns those. Bytes after the
    /// end stay where they are.
    pub(super) fn next_data<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<&'a [u8], InvalidChunk> {
        loop {
            if let State::Data(left) = &mut self.state {
                let data = take(bytes, usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                if *left == 0 {
                    self.state = State::DataEnd;
                }
                return Ok(data);
            }
            if self.is_over() {
                return Ok(&[]);
            }
            let Some((&byte, rest)) = bytes.split_first() else {
                return Ok(&[]);
            };
            *bytes = rest;
            self.state = self.state.after(byte)?;
        }
    }
}

impl State {
    /// The state after one byte of the coding itself.
    fn after(&self, byte: u8) -> Result<Self, InvalidChunk> {
        match *self {
            Self::Size { value, digits, rest } => size_line(value, digits, rest, byte),
            Self::DataEnd => match byte {
                b'\r' => Ok(Self::DataEnd),
                b'\n' => Ok(SIZE_LINE),
                _ => Err(InvalidChunk),
            },
            Self::Trailers { total, .. } if total >= MAX_LINE_BYTES => Err(InvalidChunk),
            Self::Trailers { line, total } => Ok(match byte {
                b'\n' if line == 0 => Self::Over,
                b'\n' => Self::Trailers {
                    line: 0,
                    total: total + 1,
                },
                b'\r' => Self::Trailers {
                    line,
                    total: total + 1,
                },
                _ => Self::Trailers {
                    line: line + 1,
                    total: total + 1,
                },
            }),
            Self::Data(_) | Self::Over => Err(InvalidChunk),
        }
    }
}

fn size_line(value: u64, digits: usize, rest: usize, byte: u8) -> Result<State, InvalidChunk> {
    match (byte, char::from(byte).to_digit(16)) {
        (b'\n', _) if digits == 0 => Err(InvalidChunk),
        (b'\n', _) if value == 0 => Ok(State::Trailers { line: 0, total: 0 }),
        (b'\n', _) => Ok(State::Data(value)),
        (_, Some(digit)) if rest == 0 => {
            let value = value.checked_mul(16).ok_or(InvalidChunk)? + u64::from(digit);
            let digits = digits + 1;
            if digits > MAX_LINE_BYTES {
                Err(InvalidChunk)
            } else {
                Ok(State::Size { value, digits, rest })
            }
        }
        // After the digits: the end of the line, spaces or an extension.
        (b'\r' | b' ' | b'\t' | b';', _) if digits > 0 && rest == 0 => Ok(State::Size {
            value,
            digits,
            rest: 1,
        }),
        _ if rest > 0 && rest < MAX_LINE_BYTES => Ok(State::Size {
            value,
            digits,
            rest: rest + 1,
        }),
        _ => Err(InvalidChunk),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body, what is left after it, and whether it is over.
    fn decode(mut bytes: &[u8]) -> Result<(String, usize, bool), InvalidChunk> {
        let mut chunked = Chunked::new();
        let mut body = Vec::new();
        loop {
            let data = chunked.next_data(&mut bytes)?;
            body.extend_from_slice(data);
            if data.is_empty() {
                return Ok((
                    String::from_utf8_lossy(&body).into_owned(),
                    bytes.len(),
                    chunked.is_over(),
                ));
            }
        }
    }

    #[test]
    fn well_formed() {
        let cases = [
            (
                "2\r\nab\r\n3 ;ext=\"1\"\r\ncde\r\n0\r\n\r\nXX",
                ("abcde", 2, true),
            ),
            ("a\n0123456789\n00\n\n", ("0123456789", 0, true)),
            ("0\r\nTrailer: x\r\nOther: y\r\n\r\n", ("", 0, true)),
            ("5\r\nab", ("ab", 0, false)),
            ("0\r\n", ("", 0, false)),
        ];
        for (coded, (body, left, over)) in cases {
            assert_eq!(
                decode(coded.as_bytes()),
                Ok((body.to_owned(), left, over)),
                "{coded:?}"
            );
        }
    }

    #[test]
    fn malformed() {
        let endless_extension = format!("1;{}", "x".repeat(2 * MAX_LINE_BYTES));
        let endless_zeros = "0".repeat(2 * MAX_LINE_BYTES);
        let endless_trailers = format!("0\r\n{}", "A: b\r\n".repeat(MAX_LINE_BYTES));
        let cases = [
            "x\r\n",
            "\r\n",
            ";\r\n",
            "-1\r\n",
            "11111111111111111\r\n",
            "1\r\nabc",
            &endless_extension,
            &endless_zeros,
            &endless_trailers,
        ];
        for coded in cases {
            assert_eq!(
                decode(coded.as_bytes()),
                Err(InvalidChunk),
                "{:?}",
                &coded[..coded.len().min(20)]
            );
        }
    }
}
