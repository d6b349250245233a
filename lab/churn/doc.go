// Package churn holds a long random test. Services of a real cluster change in every respect while
// clients everywhere connect to them. The lab has real agents, Open vSwitch, OVN and a Kubernetes
// API. `make test` runs it for some seconds, `make churn` for a given time.
package churn
