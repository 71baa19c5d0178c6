//! Services as containers are told of them: by variables that say where each one is.

use std::collections::BTreeMap;

/// A service that has an address in its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFacts {
    pub name: String,
    /// The cluster's address for it.
    pub address: String,
    /// At least one.
    pub ports: Vec<ServicePortFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortFacts {
    /// Empty where it has none.
    pub name: String,
    pub number: i32,
    /// In capitals: TCP, UDP or SCTP.
    pub protocol: String,
}

impl ServiceFacts {
    /// Its variables, by name: the host and the ports, and for each port the older form that links of containers had.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        let prefix = variable_name(&self.name);
        variables.insert(format!("{prefix}_SERVICE_HOST"), self.address.clone());
        for (index, port) in self.ports.iter().enumerate() {
            let number = port.number.to_string();
            if index == 0 {
                variables.insert(format!("{prefix}_SERVICE_PORT"), number.clone());
                variables.insert(format!("{prefix}_PORT"), self.url(port));
            }
            if !port.name.is_empty() {
                let name = variable_name(&port.name);
                variables.insert(format!("{prefix}_SERVICE_PORT_{name}"), number.clone());
            }
            let link = format!("{prefix}_PORT_{number}_{}", port.protocol);
            variables.insert(format!("{link}_PROTO"), port.protocol.to_lowercase());
            variables.insert(format!("{link}_PORT"), number);
            variables.insert(format!("{link}_ADDR"), self.address.clone());
            variables.insert(link, self.url(port));
        }
        variables
    }

    fn url(&self, port: &ServicePortFacts) -> String {
        let (protocol, number) = (port.protocol.to_lowercase(), port.number);
        if self.address.contains(':') {
            format!("{protocol}://[{}]:{number}", self.address)
        } else {
            format!("{protocol}://{}:{number}", self.address)
        }
    }
}

/// The name of a service or a port as part of a variable's name.
fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_its_variables_and_the_first_has_the_short_ones() {
        let port = |name: &str, number, protocol: &str| ServicePortFacts {
            name: name.to_owned(),
            number,
            protocol: protocol.to_owned(),
        };
        let service = ServiceFacts {
            name: "my-db".to_owned(),
            address: "10.0.0.9".to_owned(),
            ports: vec![port("", 80, "TCP"), port("dns-2", 53, "UDP")],
        };
        let made = service.variables();
        let made: Vec<_> = made
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let expected = [
            "MY_DB_PORT=tcp://10.0.0.9:80",
            "MY_DB_PORT_53_UDP=udp://10.0.0.9:53",
            "MY_DB_PORT_53_UDP_ADDR=10.0.0.9",
            "MY_DB_PORT_53_UDP_PORT=53",
            "MY_DB_PORT_53_UDP_PROTO=udp",
            "MY_DB_PORT_80_TCP=tcp://10.0.0.9:80",
            "MY_DB_PORT_80_TCP_ADDR=10.0.0.9",
            "MY_DB_PORT_80_TCP_PORT=80",
            "MY_DB_PORT_80_TCP_PROTO=tcp",
            "MY_DB_SERVICE_HOST=10.0.0.9",
            "MY_DB_SERVICE_PORT=80",
            "MY_DB_SERVICE_PORT_DNS_2=53",
        ];
        assert_eq!(made, expected);
        let six = ServiceFacts {
            address: "fd00::1".to_owned(),
            ..service
        };
        assert_eq!(six.variables()["MY_DB_PORT"], "tcp://[fd00::1]:80");
    }
}
