"""Tells why tests of ceph/s3-tests fail: a part of pytest that contrib/s3/conformance loads."""

import collections
import os

import botocore.client
import pytest
import requests

# Calls that the gateway refused with NotImplemented since the current test began, with its message.
refused = []
# Outcome, group and reason by the name of the test.
results = {}

make_api_call = botocore.client.BaseClient._make_api_call


def noting_api_call(client, operation, arguments):
    try:
        return make_api_call(client, operation, arguments)
    except botocore.exceptions.ClientError as error:
        answer = error.response["Error"]
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if answer.get("Code") == "NotImplemented" or status == 501:
            refused.append((operation, answer.get("Message", "")))
        raise


botocore.client.BaseClient._make_api_call = noting_api_call

request = requests.Session.request


def noting_request(session, method, url, **arguments):
    answer = request(session, method, url, **arguments)
    if answer.status_code == 501:
        refused.append((f"{method} without an SDK", answer.text))
    return answer


requests.Session.request = noting_request


def pytest_collection_modifyitems():
    """Has the tests remove uploads with their buckets: an upload keeps its bucket here."""
    import s3tests.functional as functional

    nuke_bucket = functional.nuke_bucket

    def nuke(client, bucket):
        for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
            client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        nuke_bucket(client, bucket)

    functional.nuke_bucket = nuke


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when == "call" and report.passed:
        results[item.name] = ("passed", "", "")
    elif report.skipped:
        results[item.name] = ("skipped", "", str(call.excinfo.value) if call.excinfo else "")
    elif report.failed and call.when != "teardown":
        why = " ".join(str(call.excinfo.value).split())[:150]
        if refused:
            results[item.name] = ("refused", refused[-1][0], why)
        else:
            results[item.name] = ("other", "", f"{call.when}: {call.excinfo.typename}: {why}")
    if call.when != "call":
        refused.clear()


def pytest_sessionfinish():
    with open(os.environ["RESULTS"], "w") as file:
        for name, fields in sorted(results.items()):
            file.write("\t".join((name, *fields)) + "\n")


def pytest_terminal_summary(terminalreporter):
    counts = collections.Counter(outcome for outcome, *_ in results.values())
    write = terminalreporter.write_line
    write("")
    for name, (outcome, _, why) in sorted(results.items()):
        if outcome == "other":
            write(f"other: {name}: {why}")
    groups = collections.Counter(group for outcome, group, _ in results.values() if outcome == "refused")
    write("refused: " + ", ".join(f"{group} {count}" for group, count in groups.most_common()))
    write(", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "refused", "other", "skipped")))
