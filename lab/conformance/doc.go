// Package conformance runs Kubernetes' own network tests on a cluster of package cluster: specs of
// e2e.test, built from Kubernetes' modules (module suite below), with images of Debian packages and
// programs of those modules, without a registry.
package conformance
