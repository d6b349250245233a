package controller_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/watch"
)

// TestEgressIPPool checks on a real API server that an EgressIP gets addresses of a pool, keeps
// them, and releases them; that no Service gets them; and what is said if there are none.
func TestEgressIPPool(t *testing.T) {
	p := startControlPlane(t)
	c := p.client
	defineEgressIPs(t, c, true)
	definePools(t, c)
	addCarrier(t, c, "a", "172.18.0.3")
	noError(t, createPool(t, c, "edge", `"172.18.0.50-172.18.0.51"`, ""))
	stop := candidate(t, p.own, "one")
	create := func(name, spec string) error {
		text, err := raw(t, c, "POST", watch.EgressIPPath(), `{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP",
			"metadata":{"name":"`+name+`"},"spec":{"namespaceSelector":{}`+spec+`}}`)
		if err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	}
	if err := create("none", ""); err == nil || !strings.Contains(err.Error(), "egressIPs or addressPool is required") {
		t.Errorf("without an address or a pool: %v", err)
	}
	is := func(of func() string, want string) {
		t.Helper()
		soon(t, 30*time.Second, func() string {
			if got := of(); got != want {
				return "is " + got + ", not " + want
			}
			return ""
		})
	}
	// "[172.18.0.50] on a True Allocated"
	egress := func(name string) func() string {
		return func() string {
			text, err := raw(t, c, "GET", watch.EgressIPPath()+"/"+name, "")
			noError(t, err)
			var e v1.EgressIP
			noError(t, json.Unmarshal(text, &e))
			out := fmt.Sprint(e.Status.Addresses)
			for _, x := range e.Status.Items {
				out += " on " + x.Node
			}
			for _, x := range e.Status.Conditions {
				if x.Type == v1.ConditionAllocated {
					out += fmt.Sprintf(" %s %s", x.Status, x.Reason)
				}
			}
			return out
		}
	}
	// "172.18.0.50 [EgressIP/first] a"
	used := func() string {
		text, err := raw(t, c, "GET", watch.PoolPath()+"/edge", "")
		noError(t, err)
		var q v1alpha1.LoadBalancerPool
		noError(t, json.Unmarshal(text, &q))
		out := fmt.Sprint(q.Status.Available)
		for _, x := range q.Status.Addresses {
			out += fmt.Sprint(", ", x.Address, " ", x.Services, " ", x.Node)
		}
		return out
	}
	noError(t, create("first", `,"addressPool":"edge"`))
	is(egress("first"), "[172.18.0.50] on a True Allocated")
	is(used, "1, 172.18.0.50 [EgressIP/first] a")
	createBalancer(t, c, "web")
	is(func() string { return balanced(t, c, "web") }, "172.18.0.51 True Allocated")
	noError(t, create("second", `,"addressPool":"edge"`))
	is(egress("second"), "[] False AddressesExhausted")
	noError(t, create("third", `,"addressPool":"nowhere"`))
	is(egress("third"), "[] False NoLoadBalancerPool")
	soon(t, 30*time.Second, func() string {
		list, err := c.CoreV1().Events("").List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=AddressesExhausted"})
		noError(t, err)
		for _, e := range list.Items {
			if o := e.InvolvedObject; o.Kind == "EgressIP" && o.Name == "second" && o.UID != "" {
				return ""
			}
		}
		return fmt.Sprintf("no event: %v", list.Items)
	})

	// Another leader changes nothing. A deleted object releases its address.
	stop()
	stop = candidate(t, p.own, "two")
	defer func() { stop() }()
	noError(t, c.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	is(egress("second"), "[172.18.0.51] on a True Allocated")
	is(egress("first"), "[172.18.0.50] on a True Allocated")
	is(used, "0, 172.18.0.50 [EgressIP/first] a, 172.18.0.51 [EgressIP/second] a")
	_, err := raw(t, c, "DELETE", watch.EgressIPPath()+"/first", "")
	noError(t, err)
	is(used, "1, 172.18.0.51 [EgressIP/second] a")
	createBalancer(t, c, "again")
	is(func() string { return balanced(t, c, "again") }, "172.18.0.50 True Allocated")

	// A pool of another family adds an address; the address of a range that is gone is released.
	_, err = raw(t, c, "PATCH", watch.PoolPath()+"/edge",
		`{"spec":{"ranges":["172.18.0.50-172.18.0.50","2001:db8:50::1-2001:db8:50::1"]}}`)
	noError(t, err)
	is(func() string { return strings.Fields(egress("second")())[0] }, "[2001:db8:50::1]")
}
