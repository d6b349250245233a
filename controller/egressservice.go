package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "hairpin/api/v1"
	"hairpin/cluster"
	"hairpin/kube"
	"hairpin/plan/assign"
)

// hostOf returns the desired host in the status of an EgressService. It is all nodes if each pod
// leaves with the address of its own node (sourceIPBy: Network).
func hostOf(d assign.Decision) string {
	switch {
	case d.EgressIP.Service.Network:
		return v1.HostAll
	case len(d.Items) > 0:
		return d.Items[0].Node
	}
	return ""
}

// writtenLabels are labels that the watch may not show yet.
type writtenLabels struct {
	changes map[string]any
	until   time.Time
}

// updateLabels sets the labels of the hosts of EgressServices, by which external load balancers
// find them, and removes them from other nodes. It returns the time until it must be called again.
func (g *egressIPs) updateLabels(ctx context.Context, s *cluster.Snapshot,
	hosts map[cluster.Owner]string) time.Duration {
	want := map[string]map[string]bool{}
	for owner, host := range hosts {
		label := cluster.LabelEgressHost + owner.Namespace + "-" + owner.Name
		if host == "" || host == v1.HostAll || len(validation.IsQualifiedName(label)) > 0 { // it can be too long
			continue
		}
		if want[host] == nil {
			want[host] = map[string]bool{}
		}
		want[host][label] = true
	}
	var errs []error
	now, present := time.Now(), map[string]bool{}
	for _, n := range s.Nodes {
		present[n.Name] = true
		changes := map[string]any{}
		for l := range n.Egress.Labels {
			if strings.HasPrefix(l, cluster.LabelEgressHost) && !want[n.Name][l] {
				changes[l] = nil
			}
		}
		for l := range want[n.Name] {
			if _, has := n.Egress.Labels[l]; !has {
				changes[l] = ""
			}
		}
		if len(changes) == 0 {
			delete(g.labels, n.Name)
			continue
		}
		if w := g.labels[n.Name]; maps.Equal(w.changes, changes) && now.Before(w.until) {
			continue
		}
		err := kube.PatchNode(ctx, g.client, n.Name, map[string]any{"uid": n.UID, "labels": changes})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("labels of Node/%s: %w", n.Name, err))
			continue
		}
		g.labels[n.Name] = writtenLabels{changes, now.Add(watchLag)}
	}
	maps.DeleteFunc(g.labels, func(n string, _ writtenLabels) bool { return !present[n] })
	return g.labelsWarned.log(ctx, g.log, "write labels of hosts of EgressServices", errors.Join(errs...))
}
