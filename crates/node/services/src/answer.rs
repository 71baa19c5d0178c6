//! From a request of DNS to an answer, as bytes.
//!
//! What must always hold: whatever a pod sends, the answer is bounded and nothing panics; a message that is an answer itself is
//! never answered, so that no two servers talk to each other for ever.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::ServiceCatalog;
use crate::names::{Lookup, NameFacts};

/// Seconds for which an answer may be kept, as the resolver of most clusters has it: pods come and go.
const TTL: u32 = 5;
/// What fits into a datagram everywhere, by which larger ones are refused.
const MAX_DATAGRAM: u16 = 1_232;
/// What fits into one of a client that says nothing about it.
const MIN_DATAGRAM: u16 = 512;
/// Bytes of a message's header.
const HEADER: usize = 12;
/// The bit of an answer, in the third byte of the header.
const IS_ANSWER: u8 = 0x80;

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nobody is to be answered.
    Ignore,
    Send(Vec<u8>),
    /// Somebody else knows the name.
    Forward,
    /// The name stands for one that somebody else knows: this request is to be asked, and its answer added.
    Resolve(Box<Pending>),
}

/// An answer that lacks the addresses of a name elsewhere.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    answer: Message,
    limit: usize,
    /// What to ask.
    pub(crate) question: Vec<u8>,
}

impl Pending {
    /// The answer with what was found elsewhere; nothing may have been.
    pub(crate) fn complete(mut self, found: Option<&[u8]>) -> Vec<u8> {
        match found.and_then(|bytes| Message::from_vec(bytes).ok()) {
            Some(found) => {
                self.answer.metadata.response_code = found.metadata.response_code;
                self.answer.answers.extend(found.answers);
            }
            None => self.answer.metadata.response_code = ResponseCode::ServFail,
        }
        encode(&self.answer, self.limit)
    }
}

/// Answers a request, or says who has to. `turn` changes the order of equal addresses, so that clients that take the first
/// one share them.
pub(crate) fn answer(
    request: &[u8],
    catalog: &ServiceCatalog,
    domain: &str,
    transport: Transport,
    turn: usize,
) -> Step {
    let Ok(request) = Message::from_vec(request) else {
        return malformed(request);
    };
    if request.metadata.message_type == MessageType::Response {
        return Step::Ignore;
    }
    let mut response = begin(&request);
    let limit = limit(&request, transport);
    let mut refuse = |code: ResponseCode| {
        response.metadata.response_code = code;
        Step::Send(encode(&response, limit))
    };
    if request.metadata.op_code != OpCode::Query {
        return refuse(ResponseCode::NotImp);
    }
    let [query] = request.queries.as_slice() else {
        return refuse(ResponseCode::FormErr);
    };
    let is_transfer = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
    if query.query_class() != DNSClass::IN || is_transfer {
        return refuse(ResponseCode::Refused);
    }
    match catalog.look_up(&plain(query.name()), domain) {
        Lookup::Foreign => Step::Forward,
        Lookup::Missing => {
            response.metadata.response_code = ResponseCode::NXDomain;
            deny(&mut response, domain);
            Step::Send(encode(&response, limit))
        }
        Lookup::Known(facts) => known(response, query, facts, catalog, domain, limit, turn),
    }
}

/// The answer to a request that cannot be answered.
pub(crate) fn failure(request: &[u8]) -> Option<Vec<u8>> {
    let request = Message::from_vec(request).ok()?;
    let mut response = begin(&request);
    response.metadata.authoritative = false;
    response.metadata.response_code = ResponseCode::ServFail;
    Some(encode(&response, usize::from(MIN_DATAGRAM)))
}

fn known(
    mut response: Message,
    query: &Query,
    facts: NameFacts,
    catalog: &ServiceCatalog,
    domain: &str,
    limit: usize,
    turn: usize,
) -> Step {
    let mut name = query.name().clone();
    let mut facts = facts;
    if let Some(alias) = facts.alias.take() {
        let Ok(target) = absolute(&alias) else {
            response.metadata.response_code = ResponseCode::ServFail;
            return Step::Send(encode(&response, limit));
        };
        let record = RData::CNAME(CNAME(target.clone()));
        response.add_answer(Record::from_rdata(name, TTL, record));
        if query.query_type() == RecordType::CNAME {
            return Step::Send(encode(&response, limit));
        }
        match catalog.look_up(&alias, domain) {
            Lookup::Foreign => return resolve(response, target, query.query_type(), limit),
            Lookup::Missing => {}
            // An alias of an alias is not followed.
            Lookup::Known(found) => facts = found,
        }
        name = target;
    }
    let records = records(&name, query.query_type(), &facts, turn);
    if records.is_empty() && response.answers.is_empty() {
        deny(&mut response, domain);
    }
    response.add_answers(records);
    Step::Send(encode(&response, limit))
}

fn resolve(response: Message, target: Name, kind: RecordType, limit: usize) -> Step {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(target, kind));
    match question.to_vec() {
        Ok(question) => Step::Resolve(Box::new(Pending {
            answer: response,
            limit,
            question,
        })),
        Err(_) => Step::Ignore,
    }
}

fn records(name: &Name, kind: RecordType, facts: &NameFacts, turn: usize) -> Vec<Record> {
    let record = |data: RData| Record::from_rdata(name.clone(), TTL, data);
    let mut records: Vec<Record> = match kind {
        RecordType::SRV => {
            let server = |(target, port): &(String, u16)| {
                let target = absolute(target).ok()?;
                Some(record(RData::SRV(SRV::new(0, 100, *port, target))))
            };
            facts.servers.iter().filter_map(server).collect()
        }
        RecordType::PTR => {
            let pointer = |target: &String| Some(record(RData::PTR(PTR(absolute(target).ok()?))));
            facts.pointers.iter().filter_map(pointer).collect()
        }
        kind => {
            let address = |address: &IpAddr| match (address, kind) {
                (IpAddr::V4(address), RecordType::A | RecordType::ANY) => Some(record(RData::A(A(*address)))),
                (IpAddr::V6(address), RecordType::AAAA | RecordType::ANY) => {
                    Some(record(RData::AAAA(AAAA(*address))))
                }
                (IpAddr::V4(_) | IpAddr::V6(_), _) => None,
            };
            facts.addresses.iter().filter_map(address).collect()
        }
    };
    if !records.is_empty() {
        let first = turn % records.len();
        records.rotate_left(first);
    }
    records
}

fn begin(request: &Message) -> Message {
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata = Metadata::response_from_request(&request.metadata);
    response.metadata.authoritative = true;
    response.metadata.recursion_available = true;
    response.add_queries(request.queries.iter().take(1).cloned());
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_DATAGRAM);
        response.set_edns(edns);
    }
    response
}

/// Says for how long clients may remember that there is nothing.
fn deny(response: &mut Message, domain: &str) {
    let names = (
        absolute(domain),
        absolute(&format!("ns.dns.{domain}")),
        absolute(&format!("hostmaster.{domain}")),
    );
    if let (Ok(zone), Ok(server), Ok(person)) = names {
        let soa = SOA::new(server, person, 1, 7_200, 1_800, 86_400, TTL);
        response.add_authority(Record::from_rdata(zone, TTL, RData::SOA(soa)));
    }
}

fn limit(request: &Message, transport: Transport) -> usize {
    match transport {
        Transport::Udp => usize::from(request.max_payload().clamp(MIN_DATAGRAM, MAX_DATAGRAM)),
        Transport::Tcp => usize::from(u16::MAX),
    }
}

/// An answer that does not fit says so, and the client asks again by TCP.
fn encode(message: &Message, limit: usize) -> Vec<u8> {
    match message.to_vec() {
        Ok(bytes) if bytes.len() <= limit => bytes,
        Ok(_) | Err(_) => message.truncate().to_vec().unwrap_or_default(),
    }
}

/// Says that a request was not understood, if it was one.
fn malformed(bytes: &[u8]) -> Step {
    match bytes {
        [high, low, flags, ..] if bytes.len() >= HEADER && flags & IS_ANSWER == 0 => {
            let id = u16::from_be_bytes([*high, *low]);
            let message = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
            message.to_vec().map_or(Step::Ignore, Step::Send)
        }
        _ => Step::Ignore,
    }
}

fn absolute(name: &str) -> Result<Name, hickory_proto::ProtoError> {
    let mut name = Name::from_ascii(name)?;
    name.set_fqdn(true);
    Ok(name)
}

fn plain(name: &Name) -> String {
    let text = name.to_lowercase().to_ascii();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::tests::{DOMAIN, catalog};

    fn request(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(absolute(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    fn ask(request: &[u8]) -> Step {
        answer(request, &catalog(), DOMAIN, Transport::Udp, 0)
    }

    fn asked(name: &str, kind: RecordType) -> Message {
        let request = request(name, kind);
        let Step::Send(bytes) = ask(&request) else {
            panic!("{name} is answered");
        };
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(message.metadata.id.to_be_bytes(), request[..2]);
        assert_eq!(message.metadata.message_type, MessageType::Response);
        message
    }

    fn shown(name: &str, kind: RecordType) -> String {
        let message = asked(name, kind);
        let data = message.answers.iter().map(|record| record.data.to_string());
        format!(
            "{:?} {}",
            message.metadata.response_code,
            data.collect::<Vec<_>>().join(" ")
        )
    }

    #[test]
    fn questions_are_answered_by_kind() {
        for (name, kind, wanted) in [
            ("WEB.shop.svc.Cluster.local", RecordType::A, "NoError 10.43.0.5"),
            ("web.shop.svc.cluster.local", RecordType::AAAA, "NoError "),
            ("web.shop.svc.cluster.local", RecordType::MX, "NoError "),
            (
                "db.shop.svc.cluster.local",
                RecordType::A,
                "NoError 10.88.0.3 10.88.0.4",
            ),
            ("nobody.shop.svc.cluster.local", RecordType::A, "NXDomain "),
            (
                "_http._tcp.web.shop.svc.cluster.local",
                RecordType::SRV,
                "NoError 0 100 80 web.shop.svc.cluster.local.",
            ),
            (
                "5.0.43.10.in-addr.arpa",
                RecordType::PTR,
                "NoError web.shop.svc.cluster.local.",
            ),
            ("web.shop.svc.cluster.local", RecordType::AXFR, "Refused "),
        ] {
            assert_eq!(shown(name, kind), wanted, "{name} {kind}");
        }
        let missing = asked("nobody.shop.svc.cluster.local", RecordType::A);
        assert_eq!(
            missing.authorities.len(),
            1,
            "clients learn for how long to remember it"
        );
        assert_eq!(ask(&request("example.com", RecordType::A)), Step::Forward);
    }

    #[test]
    fn an_alias_is_followed() {
        let Step::Resolve(pending) = ask(&request("far.shop.svc.cluster.local", RecordType::A)) else {
            panic!("somebody else knows it");
        };
        let mut found = Message::from_vec(&pending.question).unwrap().into_response();
        let target = found.queries[0].name().clone();
        assert_eq!(target.to_string(), "example.com.");
        found.add_answer(Record::from_rdata(target, 60, RData::A(A([192, 0, 2, 7].into()))));
        let whole = Message::from_vec(&pending.complete(Some(&found.to_vec().unwrap()))).unwrap();
        assert_eq!(whole.answers.len(), 2);
        let Step::Resolve(pending) = ask(&request("far.shop.svc.cluster.local", RecordType::A)) else {
            panic!("somebody else knows it");
        };
        let failed = Message::from_vec(&pending.complete(None)).unwrap();
        assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    }

    #[test]
    fn what_is_no_question_is_refused_or_ignored() {
        let mut answered = Message::from_vec(&request("example.com", RecordType::A)).unwrap();
        answered.metadata.message_type = MessageType::Response;
        assert_eq!(ask(&answered.to_vec().unwrap()), Step::Ignore);
        assert_eq!(ask(b""), Step::Ignore);
        assert_eq!(ask(b"\x01\x02\x00"), Step::Ignore);
        let Step::Send(bytes) = ask(b"\x01\x02\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xff") else {
            panic!("a bad question is answered");
        };
        assert_eq!(bytes[..2], [1, 2]);
        assert_eq!(bytes[3] & 0xf, 1, "it says that it was not understood");
    }

    #[test]
    fn an_answer_that_does_not_fit_is_truncated() {
        let mut catalog = catalog();
        let endpoints: Vec<_> = (0..200)
            .map(|number| serde_json::json!({"addresses": [format!("10.88.1.{number}")]}))
            .collect();
        let slice = serde_json::json!({"addressType": "IPv4", "endpoints": endpoints,
            "metadata": {"name": "db", "namespace": "shop", "labels": {"kubernetes.io/service-name": "db"}}});
        catalog.set_slice(&serde_json::from_value(slice).unwrap());
        let request = request("db.shop.svc.cluster.local", RecordType::A);
        let send = |transport| match answer(&request, &catalog, DOMAIN, transport, 0) {
            Step::Send(bytes) => Message::from_vec(&bytes).unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(send(Transport::Udp).metadata.truncation);
        assert_eq!(send(Transport::Tcp).answers.len(), 200);
    }

    proptest! {
        /// Bytes of a pod, at random and as changes of a good request.
        #[test]
        fn hostile_packets_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..600), at in 0_usize..64, value: u8) {
            let check = |bytes: &[u8]| {
                if let Step::Send(answer) = ask(bytes) {
                    assert!(answer.len() <= usize::from(MAX_DATAGRAM));
                }
                let _ = failure(bytes);
            };
            check(&bytes);
            let mut good = request("_http._tcp.db.shop.svc.cluster.local", RecordType::SRV);
            if let Some(place) = good.get_mut(at) {
                *place = value;
            }
            check(&good);
            good.extend_from_slice(&bytes);
            check(&good);
        }
    }
}
