// Package churn holds a long random test: Services of a real cluster change in every way while
// clients everywhere ask for them, in a lab with real agents, Open vSwitch, OVN and a Kubernetes
// API. `make test` runs it for some seconds, `make churn` for as long as told.
package churn
