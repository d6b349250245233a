package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// RunPod does what a kubelet does with a Pod object, but without containers: it adds the pod's
// network and reports the Pod as running and ready. serve, if not nil, is called between the two,
// to start what replaces the containers.
func (n *Node) RunPod(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod,
	serve func(*Pod) error) (*Pod, error) {
	p, err := n.AddPod(ctx, PodConfig{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)})
	if err != nil {
		return nil, err
	}
	if serve != nil {
		if err := serve(p); err != nil {
			return nil, err
		}
	}
	now := metav1.NewTime(time.Now())
	status := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		HostIP:    n.addresses[0].Addr().String(),
		StartTime: &now,
		PodIP:     p.IPs()[0].String(),
	}
	for _, a := range n.addresses {
		status.HostIPs = append(status.HostIPs, corev1.HostIP{IP: a.Addr().String()})
	}
	for _, ip := range p.IPs() {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	for _, c := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions,
			corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	return p, patchPodStatus(ctx, client, pod, status)
}

// EndPod does what a kubelet does with a Pod that is being deleted: it reports it as not ready,
// removes its network, and deletes the object.
func (n *Node) EndPod(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	status := corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(time.Now())},
	}}
	if err := patchPodStatus(ctx, client, pod, status); err != nil {
		return err
	}
	list := n.Pods()
	i := slices.IndexFunc(list, func(p *Pod) bool { return p.Namespace() == pod.Namespace && p.Name() == pod.Name })
	if i >= 0 {
		if err := list[i].Delete(ctx); err != nil {
			return err
		}
	}
	now := int64(0)
	if err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		return fmt.Errorf("delete Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func patchPodStatus(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, status corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("report status of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
