// Package e2e tests Hairpin from a user's side: in the cluster of `make cluster`, with kubectl,
// helm and the API. Its tests need that cluster and have the build tag e2e: `make e2e`.
package e2e
