// Package conformance runs network tests of other projects on a cluster of package cluster: specs
// of Kubernetes' e2e.test (module suite below), the conformance suite of network-policy-api and
// cases of cyclonus (module policies below). Programs come from those projects' modules, images
// from them and Debian packages, nothing from a registry. Where the kernel has no SCTP, agnhost is
// built with that of module sctp below.
package conformance
