//! JSON into a tree with positions.
//!
//! This is the slow, exact parser: it runs only when a document must be explained. Depth and size are bounded
//! by the caller's limits; a syntax error names its line and column.

use super::tree::{Key, Node, Position, Value};
use super::{DecodeError, MAX_DEPTH};

/// Parses one JSON value that starts at `start` in the whole input.
pub(super) fn parse(text: &str, start: Position) -> Result<Node, DecodeError> {
    let mut parser = Parser {
        rest: text,
        at: start,
    };
    parser.skip_whitespace();
    let node = parser.value(0)?;
    parser.skip_whitespace();
    if parser.rest.is_empty() {
        Ok(node)
    } else {
        Err(parser.syntax("expected the end of the document"))
    }
}

struct Parser<'a> {
    rest: &'a str,
    at: Position,
}

impl Parser<'_> {
    fn syntax(&self, message: &str) -> DecodeError {
        DecodeError::syntax(message, self.at)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.rest = &self.rest[character.len_utf8()..];
        if character == '\n' {
            self.at.line += 1;
            self.at.column = 1;
        } else {
            self.at.column += 1;
        }
        Some(character)
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\r' | '\n')) {
            self.bump();
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), DecodeError> {
        if self.peek() == Some(wanted) {
            self.bump();
            Ok(())
        } else {
            Err(self.syntax(&format!("expected `{wanted}`")))
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, DecodeError> {
        if depth > MAX_DEPTH {
            return Err(DecodeError::limit(
                &format!("nested deeper than {MAX_DEPTH} levels"),
                self.at,
            ));
        }
        let at = self.at;
        let value = match self.peek() {
            Some('{') => self.mapping(depth)?,
            Some('[') => self.sequence(depth)?,
            Some('"') => Value::String(self.string()?),
            Some('-' | '0'..='9') => self.number()?,
            Some('t') => self.word("true", Value::Bool(true))?,
            Some('f') => self.word("false", Value::Bool(false))?,
            Some('n') => self.word("null", Value::Null)?,
            Some(_) => return Err(self.syntax("expected a JSON value")),
            None => return Err(self.syntax("the document ends too early")),
        };
        Ok(Node { at, value })
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, DecodeError> {
        self.expect('{')?;
        let mut entries = Vec::new();
        self.skip_whitespace();
        if self.peek() == Some('}') {
            self.bump();
            return Ok(Value::Mapping(entries));
        }
        loop {
            self.skip_whitespace();
            let at = self.at;
            if self.peek() != Some('"') {
                return Err(self.syntax("expected a key in double quotes"));
            }
            let text = self.string()?;
            self.skip_whitespace();
            self.expect(':')?;
            self.skip_whitespace();
            entries.push((Key { at, text }, self.value(depth + 1)?));
            if self.closes('}')? {
                return Ok(Value::Mapping(entries));
            }
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, DecodeError> {
        self.expect('[')?;
        let mut items = Vec::new();
        self.skip_whitespace();
        if self.peek() == Some(']') {
            self.bump();
            return Ok(Value::Sequence(items));
        }
        loop {
            self.skip_whitespace();
            items.push(self.value(depth + 1)?);
            if self.closes(']')? {
                return Ok(Value::Sequence(items));
            }
        }
    }

    /// After an element: a comma goes on, the closing bracket ends.
    fn closes(&mut self, end: char) -> Result<bool, DecodeError> {
        self.skip_whitespace();
        match self.peek() {
            Some(',') => {
                self.bump();
                Ok(false)
            }
            Some(found) if found == end => {
                self.bump();
                Ok(true)
            }
            _ => Err(self.syntax(&format!("expected `,` or `{end}`"))),
        }
    }

    /// A quoted string; `serde_json` decodes its escapes, we only find its end.
    fn string(&mut self) -> Result<String, DecodeError> {
        let (start, at) = (self.rest, self.at);
        self.bump();
        loop {
            match self.bump() {
                Some('"') => break,
                Some('\\') => {
                    self.bump();
                }
                Some(control) if control < ' ' => {
                    return Err(DecodeError::syntax("control character in a string", at));
                }
                Some(_) => {}
                None => return Err(DecodeError::syntax("a string is not closed", at)),
            }
        }
        let quoted = &start[..start.len() - self.rest.len()];
        serde_json::from_str(quoted).map_err(|_| DecodeError::syntax("invalid escape in a string", at))
    }

    fn number(&mut self) -> Result<Value, DecodeError> {
        let (start, at) = (self.rest, self.at);
        while matches!(self.peek(), Some('-' | '+' | '.' | 'e' | 'E' | '0'..='9')) {
            self.bump();
        }
        let text = &start[..start.len() - self.rest.len()];
        if is_json_number(text) {
            Ok(Value::Number(text.into()))
        } else {
            Err(DecodeError::syntax("malformed number", at))
        }
    }

    fn word(&mut self, word: &'static str, value: Value) -> Result<Value, DecodeError> {
        let Some(rest) = self.rest.strip_prefix(word) else {
            return Err(self.syntax("expected a JSON value"));
        };
        self.rest = rest;
        self.at.column += u32::try_from(word.len()).unwrap_or(0);
        Ok(value)
    }
}

/// `-? int frac? exp?`, without leading zeros.
fn is_json_number(text: &str) -> bool {
    fn digits(text: &str) -> &str {
        text.trim_start_matches(|c: char| c.is_ascii_digit())
    }
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let after_int = digits(unsigned);
    let int_len = unsigned.len() - after_int.len();
    if int_len == 0 || (int_len > 1 && unsigned.starts_with('0')) {
        return false;
    }
    let after_fraction = match after_int.strip_prefix('.') {
        Some(fraction) if digits(fraction).len() == fraction.len() => return false,
        Some(fraction) => digits(fraction),
        None => after_int,
    };
    match after_fraction.strip_prefix(['e', 'E']) {
        Some(exponent) => {
            let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !exponent.is_empty() && digits(exponent).is_empty()
        }
        None => after_fraction.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Position = Position { line: 1, column: 1 };

    #[test]
    fn positions_are_those_of_keys_and_values() {
        let node = parse("{\"a\":\n  {\"é\": [1, true]}}", START).unwrap();
        let inner = node.get("a").and_then(|a| a.get("é")).unwrap();
        assert_eq!(inner.at, Position { line: 2, column: 9 });
        assert_eq!(node.locate("a.é[1]"), Position { line: 2, column: 13 });
        assert_eq!(node.locate("a.missing"), Position { line: 1, column: 2 });
    }

    #[test]
    fn agrees_with_serde_json_on_what_is_json() {
        for text in [
            "{}",
            "[]",
            "[1,2]",
            "-0",
            "1.5e-3",
            "01",
            "1.",
            "[1,]",
            "{\"a\" 1}",
            "\"\\ud83d\"",
            "\"\\u00e9\"",
            "nul",
            "{\"a\":1}x",
            "\"a\nb\"",
            "",
            "-",
            "[1 2]",
            "+1",
        ] {
            let expected = serde_json::from_str::<serde_json::Value>(text).is_ok();
            assert_eq!(parse(text, START).is_ok(), expected, "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = "[".repeat(10_000);
        assert!(
            parse(&deep, START)
                .unwrap_err()
                .to_string()
                .contains("nested deeper")
        );
    }
}
