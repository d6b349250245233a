// Package e2e tests Hairpin from a user's side: in the cluster of `make cluster`, with kubectl,
// helm and the API. Its tests have the build tag e2e (`make e2e`) and need that cluster, except
// TestQuickStart, which starts its own.
package e2e
