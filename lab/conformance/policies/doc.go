// Package policies runs the conformance suite of network-policy-api, as a test (make builds its
// program). Program cyclonus beside it runs the cases of that project. They live in a Go module of
// their own so that the product's go.mod stays small.
package policies
