package run

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"hairpin/cluster"
	"hairpin/plan"
	"hairpin/watch"
)

// leaseNamespace is where the controller's Lease lives.
const leaseNamespace = "kube-system"

// Controller decides what is the cluster's to decide: the small numbers of the nodes. Several may run; the one that
// holds the Lease "hairpin-controller" works. It returns when ctx ends.
func Controller(ctx context.Context, c Config, log *slog.Logger) error {
	client, err := kubeClient(c.Process.Kubeconfig)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name this controller: %w", err)
	}
	// One that lost the Lease tries for it again, until it is told to stop.
	for ctx.Err() == nil {
		if err := lead(ctx, client, host+"-"+strconv.Itoa(os.Getpid()), c.Cluster, log); err != nil {
			return err
		}
	}
	return nil
}

func lead(ctx context.Context, client kubernetes.Interface, identity string, config cluster.Config, log *slog.Logger) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: leaseNamespace, Name: "hairpin-controller"},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				log.Info("leading", "identity", identity)
				if err := decide(ctx, client, config, log); err != nil && ctx.Err() == nil {
					log.Error("controller stopped", "error", err)
				}
			},
			OnStoppedLeading: func() { log.Info("not leading any more", "identity", identity) },
		},
	})
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}
	elector.Run(ctx)
	return nil
}

// decide follows the cluster until ctx ends.
func decide(ctx context.Context, client kubernetes.Interface, config cluster.Config, log *slog.Logger) error {
	snapshots, err := watch.Kube(ctx, client, "", config)
	if err != nil {
		return err
	}
	notes := newReporter(client, "hairpin-controller", log)
	defer notes.stop()
	retry := time.NewTimer(0)
	<-retry.C
	var last *cluster.Snapshot
	for {
		select {
		case <-ctx.Done():
			return nil
		case last = <-snapshots:
		case <-retry.C:
		}
		if last == nil {
			continue
		}
		if err := numberNodes(ctx, client, last, log); err != nil {
			log.Warn("node ids", "error", err)
			retry.Reset(time.Second)
		}
		notes.report(clusterProblems(last))
	}
}

// numberNodes writes the node-id annotation of nodes that have none, or one that is taken.
func numberNodes(ctx context.Context, client kubernetes.Interface, s *cluster.Snapshot, log *slog.Logger) error {
	for name, id := range plan.NodeIDs(s.Nodes) {
		if s.Node(name).ID == id {
			continue
		}
		if err := annotateNode(ctx, client, name, map[string]string{cluster.AnnotationNodeID: strconv.Itoa(id)}); err != nil {
			return err
		}
		log.Info("node id given", "node", name, "id", id)
	}
	return nil
}

// clusterProblems are those of the whole cluster: what could not be parsed, and what no node can do. What concerns
// one node is told by its agent.
func clusterProblems(s *cluster.Snapshot) []cluster.Problem {
	problems := s.Problems
	for _, n := range s.Nodes {
		if n.ID == 0 {
			continue
		}
		_, found := plan.Node(s, n.Name)
		for _, p := range found {
			if p.Owner.Kind != "Node" {
				problems = append(problems[:len(problems):len(problems)], p)
			}
		}
		break
	}
	return problems
}

// annotateNode sets annotations of a Node by a merge patch; others stay.
func annotateNode(ctx context.Context, client kubernetes.Interface, name string, annotations map[string]string) error {
	patch, err := annotationPatch(annotations)
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "hairpin"}); err != nil {
		return fmt.Errorf("annotate node %s: %w", name, err)
	}
	return nil
}
