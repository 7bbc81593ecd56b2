check test.test_json
PYTHONMALLOC=malloc check test.test_json
