package kube

import "time"

// The controller's Lease.
const (
	LeaseNamespace = "kube-system"
	LeaseName      = "hairpin-controller"

	LeaseDuration = 15 * time.Second // after so long without a sign of its holder, another takes it
	RenewDeadline = 10 * time.Second // after so long without renewing it, the holder stops working
	RenewPeriod   = 2 * time.Second
)
