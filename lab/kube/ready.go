package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// startTimeout bounds each of the two waits of a start. They take seconds; minutes in qemu, where
// the traffic of the kernel datapath is measured.
const startTimeout = 10 * time.Minute

// waitServer waits until the API server's /readyz answers 200, and returns the administrator's
// client.
func waitServer(ctx context.Context, kubeconfig string, failed <-chan error) (kubernetes.Interface, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("making a client from %s: %w", kubeconfig, err)
	}
	return client, poll(ctx, failed, "/readyz", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// waitDefaults waits until Pods can be created in the default namespace: it exists, and the
// controller manager has made its service account.
func waitDefaults(ctx context.Context, client kubernetes.Interface, failed <-chan error) error {
	return poll(ctx, failed, "the default namespace and its service account", func(ctx context.Context) error {
		if _, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// poll calls try until it succeeds, the deadline passes, ctx ends, or a component ends by itself.
func poll(ctx context.Context, failed <-chan error, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w, last: %w", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}
