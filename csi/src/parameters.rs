//! Parameters of a StorageClass.

use std::collections::BTreeMap;

use crate::volume::component;

/// Prefix of what the provisioner of Kubernetes tells of a claim.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";
/// Permission bits of a volume's directory without the parameter `mode`.
const MODE: u32 = 0o777;
/// Variables of `pathPattern`, and the parameters that have their values.
const VARIABLES: [(&str, &str); 3] = [
    ("${pvc.name}", "csi.storage.k8s.io/pvc/name"),
    ("${pvc.namespace}", "csi.storage.k8s.io/pvc/namespace"),
    ("${pv.name}", "csi.storage.k8s.io/pv/name"),
];

/// The wishes of a StorageClass for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Path of the volume's directory below the root.
    pub(crate) path: String,
    /// Permission bits of the directory.
    pub(crate) mode: u32,
    /// Owner of the directory.
    pub(crate) uid: u32,
    /// Group of the directory.
    pub(crate) gid: u32,
}

/// Why parameters cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParameterError {
    #[error("unknown parameter {0:?}: there are pathPattern, mode, uid and gid")]
    Unknown(String),
    #[error("the parameter {0}={1:?} is not {2}")]
    Value(&'static str, String, &'static str),
    #[error(
        "pathPattern={0:?} has a variable without a value: there are ${{pvc.name}}, \
         ${{pvc.namespace}} and ${{pv.name}}, which the provisioner tells with \
         --extra-create-metadata"
    )]
    Variable(String),
}

impl Parameters {
    /// Reads the parameters of a volume with this name.
    pub(crate) fn parse<'a>(
        name: &str,
        given: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Result<Parameters, ParameterError> {
        let given: BTreeMap<_, _> = given.collect();
        let mut found = Parameters { path: component(name), mode: MODE, uid: 0, gid: 0 };
        for (key, value) in &given {
            let number = |of| value.parse().map_err(|_| of);
            match key.as_str() {
                "pathPattern" => found.path = expand(value, &given)?,
                "mode" => {
                    let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777);
                    let bits = "permission bits in octal, such as 0750";
                    let no = || ParameterError::Value("mode", (*value).clone(), bits);
                    found.mode = mode.ok_or_else(no)?;
                }
                "uid" => {
                    let no = |()| ParameterError::Value("uid", (*value).clone(), "a number");
                    found.uid = number(()).map_err(no)?;
                }
                "gid" => {
                    let no = |()| ParameterError::Value("gid", (*value).clone(), "a number");
                    found.gid = number(()).map_err(no)?;
                }
                key if key.starts_with(OF_KUBERNETES) => {}
                key => return Err(ParameterError::Unknown(key.to_owned())),
            }
        }
        Ok(found)
    }
}

/// The path of a pattern. A value becomes one component, so that a name of a claim adds no level.
fn expand(pattern: &str, given: &BTreeMap<&String, &String>) -> Result<String, ParameterError> {
    let mut path = pattern.to_owned();
    for (variable, parameter) in VARIABLES {
        if let Some(value) = given.get(&parameter.to_owned()) {
            path = path.replace(variable, &component(value));
        }
    }
    let left = path.contains("${");
    if left { Err(ParameterError::Variable(pattern.to_owned())) } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)]) -> Result<Parameters, ParameterError> {
        let given: BTreeMap<String, String> =
            given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Parameters::parse("pvc-1", given.iter())
    }

    #[test]
    fn a_pattern_is_made_of_the_claim() {
        let class = ("pathPattern", "${pvc.namespace}/${pvc.name}");
        let claim =
            [("csi.storage.k8s.io/pvc/name", "data"), ("csi.storage.k8s.io/pvc/namespace", "a/b")];
        let parsed = parse(&[&[class], &claim[..]].concat()).unwrap();
        assert_eq!(parsed.path, "a%2Fb/data");
        assert!(matches!(parse(&[class]), Err(ParameterError::Variable(_))));
    }

    #[test]
    fn what_is_no_parameter_is_refused_by_its_name() {
        let plain = Parameters { path: "pvc-1".to_owned(), mode: 0o777, uid: 0, gid: 0 };
        assert_eq!(parse(&[("csi.storage.k8s.io/fstype", "")]), Ok(plain));
        assert_eq!(parse(&[("mode", "0750"), ("uid", "7")]).unwrap().mode, 0o750);
        for wrong in [("mode", "rwx"), ("mode", "70000"), ("uid", "-1"), ("gid", "x"), ("Mode", "")]
        {
            assert!(parse(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
