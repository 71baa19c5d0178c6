//! The fast path: `serde_json` straight into the types, strict enough to never accept what the tree would not.
//!
//! This wrapper around a deserializer fails on anything unusual: an unknown field, a key that may be a
//! duplicate, a quantity that is not canonical, a field the profile does not know. It need not say what is
//! wrong, and it may be wrong itself: whoever uses it decodes again through the tree, which decides.

use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Visitor};

use super::FieldRules;
use crate::quantity::Amount;

/// Objects with more keys than this go the slow way; a Pod's widest object has fewer.
const MAX_KEYS: usize = 64;

pub(super) struct Strict<D> {
    inner: D,
    rules: FieldRules,
}

impl<D> Strict<D> {
    pub(super) const fn new(inner: D, rules: FieldRules) -> Self {
        Self { inner, rules }
    }
}

fn unusual<E: de::Error>() -> E {
    E::custom("needs a closer look")
}

macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($argument,)* StrictVisitor { inner: visitor, rules: self.rules })
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    forward! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_map();
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        if name == "Quantity" {
            return visitor.visit_newtype_struct(Strict::new(CanonicalQuantity(self.inner), self.rules));
        }
        self.inner.deserialize_newtype_struct(
            name,
            StrictVisitor {
                inner: visitor,
                rules: self.rules,
            },
        )
    }

    /// Types ask for this when they do not know a field.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, D::Error> {
        Err(unusual())
    }
}

/// Lets a quantity through if it is spelled as it would be written out.
struct CanonicalQuantity<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for CanonicalQuantity<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let text = <String as de::Deserialize>::deserialize(self.0)?;
        match Amount::parse(&text) {
            Ok(amount) if amount.to_string() == text => visitor.visit_string(text),
            _ => Err(unusual()),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct StrictVisitor<V> {
    inner: V,
    rules: FieldRules,
}

macro_rules! forward_visit {
    ($($method:ident($type:ty);)*) => {$(
        fn $method<E: de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StrictVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(f)
    }

    forward_visit! {
        visit_bool(bool);
        visit_i64(i64);
        visit_u64(u64);
        visit_f64(f64);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
    }

    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Strict::new(deserializer, self.rules))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner
            .visit_newtype_struct(Strict::new(deserializer, self.rules))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(StrictSeq {
            inner: seq,
            rules: self.rules,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(StrictMap {
            inner: map,
            rules: self.rules,
            keys: Keys::default(),
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(data)
    }
}

struct StrictSeq<A> {
    inner: A,
    rules: FieldRules,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for StrictSeq<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        self.inner.next_element_seed(StrictSeed {
            inner: seed,
            rules: self.rules,
        })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

struct StrictMap<A> {
    inner: A,
    rules: FieldRules,
    keys: Keys,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for StrictMap<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.inner.next_key_seed(KeySeed {
            inner: seed,
            keys: &mut self.keys,
            rules: self.rules,
        })
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.inner.next_value_seed(StrictSeed {
            inner: seed,
            rules: self.rules,
        })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

struct StrictSeed<S> {
    inner: S,
    rules: FieldRules,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for StrictSeed<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Strict::new(deserializer, self.rules))
    }
}

/// Hashes of the keys of one object. Two keys with one hash are taken for a duplicate.
struct Keys {
    hashes: [u64; MAX_KEYS],
    len: usize,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            hashes: [0; MAX_KEYS],
            len: 0,
        }
    }
}

impl Keys {
    fn insert(&mut self, key: &str) -> bool {
        let hash = fnv(key.as_bytes());
        if self.len == MAX_KEYS || self.hashes[..self.len].contains(&hash) {
            return false;
        }
        self.hashes[self.len] = hash;
        self.len += 1;
        true
    }
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

// Serde asks a seed, then a deserializer, then a visitor for one key: the three wrappers carry the same, each into the
// next, and a macro for them would be longer.

struct KeySeed<'a, S> {
    inner: S,
    keys: &'a mut Keys,
    rules: FieldRules,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for KeySeed<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(KeyDeserializer {
            inner: deserializer,
            keys: self.keys,
            rules: self.rules,
        })
    }
}

struct KeyDeserializer<'a, D> {
    inner: D,
    keys: &'a mut Keys,
    rules: FieldRules,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for KeyDeserializer<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_str(KeyVisitor {
            inner: visitor,
            keys: self.keys,
            rules: self.rules,
        })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct KeyVisitor<'a, V> {
    inner: V,
    keys: &'a mut Keys,
    rules: FieldRules,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for KeyVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<V::Value, E> {
        if self.keys.insert(key) && self.rules.allows_anywhere(key) {
            self.inner.visit_str(key)
        } else {
            Err(unusual())
        }
    }

    fn visit_borrowed_str<E: de::Error>(self, key: &'de str) -> Result<V::Value, E> {
        if self.keys.insert(key) && self.rules.allows_anywhere(key) {
            self.inner.visit_borrowed_str(key)
        } else {
            Err(unusual())
        }
    }
}
