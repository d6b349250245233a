package kube

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/client-go/kubernetes"

	v1 "hairpin/api/v1"
	"hairpin/watch"
)

// EgressIP reads an EgressIP from the API.
func EgressIP(ctx context.Context, client kubernetes.Interface, name string) (*v1.EgressIP, error) {
	text, err := client.CoreV1().RESTClient().Get().AbsPath(watch.EgressIPPath()+"/"+name).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("EgressIP/%s: %w", name, err)
	}
	e := &v1.EgressIP{}
	if err := json.Unmarshal(text, e); err != nil {
		return nil, fmt.Errorf("EgressIP/%s: %w", name, err)
	}
	return e, nil
}
